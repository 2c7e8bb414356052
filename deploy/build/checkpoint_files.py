"""Which files of a Hugging Face checkpoint serving reads. Nothing here reads them, or imports torch."""

import json
import re
from pathlib import Path

# Serving reads these files. READMEs, other frameworks' weights and training state are not among them.
SERVED = re.compile(
    r"(.*/)?("
    r"config\.json|generation_config\.json|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json|"
    r"(pre)?processor_config\.json|"
    r"special_tokens_map\.json|added_tokens\.json|tokenizer[^/]*|vocab[^/]*|merges\.txt|[^/]*\.spm|[^/]*\.model|"
    r"model[^/]*\.safetensors|model\.safetensors\.index\.json)"
)
# Code is served only where the archive's settings trust it.
CODE = ".py"


def served_files(source: Path, *, with_code: bool) -> list[Path]:
    """List the files of a checkpoint that serving reads, wherever below its folder they lie."""
    return [path for path in sorted(source.rglob("*")) if _is_served(path, source, with_code=with_code)]


def files_beside(path: Path, *, with_code: bool) -> list[Path]:
    """List the files that belong to weights given as one file: those beside it, and of the folders that it names.

    What lies below the weights' folder for other reasons, other models say, is left where it is.
    """
    source = path.parent
    folders = [source]
    modules = source / "modules.json"
    if modules.is_file():
        try:
            named = [str(module["path"]) for module in json.loads(modules.read_text(encoding="utf-8"))]
        except (ValueError, TypeError, KeyError):
            # Whoever loads the model says what is wrong with the file.
            named = []
        folders += [source / name for name in named if name not in ("", ".", "..") and Path(name).name == name]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    return [file for file in files if _is_served(file, source, with_code=with_code)]


def _is_served(path: Path, source: Path, *, with_code: bool) -> bool:
    name = path.relative_to(source).as_posix()
    return path.is_file() and (bool(SERVED.fullmatch(name)) or (with_code and path.suffix == CODE))
