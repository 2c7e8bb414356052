"""Sample inputs that an archive keeps, with their answers in fp32, for processors on which no build compared anything.

builder: payloads, answers in fp32 -> precision-samples.npz
worker:  precision-samples.npz -> payloads, for the task's own hooks; answers
"""

import io
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from handlers.engines.cores import read_processor
from handlers.precision.answers import Kind
from handlers.protocol.requests import Payload

SAMPLES = "precision-samples.npz"  # the file in an archive
MOST_BYTES = 2 << 20  # the most bytes of it


@dataclass(frozen=True, slots=True)
class Samples:
    place: str  # where the archive's proofs were made; see `name_place`
    least: float | None  # the required agreement; None for the kind's default
    payloads: Sequence[Payload]
    answers: Sequence[object]  # in fp32

    def write(self, path: Path) -> None:
        """Write as many samples as MOST_BYTES have room for."""
        count = len(self.answers)
        while len(content := self._pack(count)) > MOST_BYTES and count > 1:
            count = count * 3 // 4
        path.write_bytes(content)

    def _pack(self, count: int) -> bytes:
        values = [payload.value for payload in self.payloads[:count]]
        texts = [None if isinstance(value, bytes) else value for value in values]
        about = {"place": self.place, "least": self.least, "texts": texts}
        arrays = {"about": np.array(json.dumps(about))}
        images = {f"image/{at}": each for at, each in enumerate(values) if isinstance(each, bytes)}
        arrays |= {name: np.frombuffer(each, np.uint8) for name, each in images.items()}
        for at, answer in enumerate(self.answers[:count]):
            parts = answer if isinstance(answer, tuple) else (answer,)
            arrays |= {f"answer/{at}/{number}": _make_plain(part) for number, part in enumerate(parts)}
        with io.BytesIO() as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            return file.getvalue()


def _make_plain(part: object) -> Any:
    """Return an array without objects, in few bytes."""
    array = np.asarray(part)
    kinds: dict[str, Any] = {"O": np.str_, "f": np.float32, "i": np.int32}
    return array.astype(kinds.get(array.dtype.kind, array.dtype))


def read_samples(folder: Path, kind: Kind) -> Samples | None:
    """Read an archive's samples, whose answers are of a kind; None if it has none."""
    if not (folder / SAMPLES).is_file():
        return None
    with np.load(folder / SAMPLES) as arrays:
        about = json.loads(str(arrays["about"]))
        texts = about.pop("texts")
        values = [arrays[f"image/{at}"].tobytes() if text is None else text for at, text in enumerate(texts)]
        answers = []
        for at in range(len(texts)):
            names = [name for name in arrays.files if name.startswith(f"answer/{at}/")]
            answers.append(kind.form(*(arrays[name] for name in names)))
    return Samples(**about, payloads=[Payload(value) for value in values], answers=answers)


def name_place() -> str:
    """Name what decides the arithmetic of a precision: the kind of processor, and the version of the library."""
    processor = read_processor() or platform.node()  # of an unknown kind, no other machine is
    try:
        return f"{processor}; openvino {version('openvino')}"
    except PackageNotFoundError:
        return processor
