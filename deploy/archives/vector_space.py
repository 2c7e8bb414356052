"""The identity of a model's vector space: vectors of equal identities may stand in one index.

a checkpoint's tensors, its tokenizer, modules and prompts -> write_vector_space -> vector-space.txt in the archive

The worker appends its precision. Formats of files and versions of libraries do not count.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors

from handlers.archive_files import VECTOR_SPACE

# Keys of JSON that do not change a vector.
NEUTRAL = ("transformers_version", "_name_or_path", "__version__", "dtype", "torch_dtype", "architectures")
UNREAD = ("generation_config.json", "special_tokens_map.json", "prepared.json", "model.safetensors.index.json")
DIGITS = 16


def write_vector_space(source: Path, folder: Path) -> None:
    digest = hashlib.sha256()
    files = sorted(path for path in source.rglob("*") if path.is_file() and path.name not in UNREAD)
    for path in files:
        if path.suffix != ".safetensors":
            name = path.relative_to(source).as_posix()
            digest.update(name.encode() + hashlib.sha256(_read(path)).digest())
    # A model in several files has the tensors of one.
    tensors = {}
    for path in files:
        if path.suffix == ".safetensors":
            place = path.parent.relative_to(source).as_posix() if path.name.startswith("model") else path.name
            with safetensors.safe_open(path, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping
                    tensors[f"{place}/{name}"] = _hash(opened.get_tensor(name))
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name])
    (folder / VECTOR_SPACE).write_text(digest.hexdigest()[:DIGITS], encoding="utf-8")


def _hash(tensor: Any) -> bytes:
    return hashlib.sha256(str(tuple(tensor.shape)).encode() + tensor.float().contiguous().numpy().tobytes()).digest()


def _read(path: Path) -> bytes:
    if path.suffix != ".json":
        return path.read_bytes()

    def drop(found: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in found.items() if key not in NEUTRAL}

    content = json.loads(path.read_text(encoding="utf-8"), object_hook=drop)
    return json.dumps(content, sort_keys=True).encode()
