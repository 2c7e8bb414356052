"""Reads mutated files of torch.save and TorchScript in a child process.

`python -m tests.hostile.pickles FOLDER SEED COUNT`: the exit code is 0 if each is read or refused in one line,
within seconds and without memory beyond a bound.
"""

import io
import pickle
import pickletools
import random
import resource
import signal
import sys
import warnings
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch

from deploy.archives.sources import WeightsUnavailable
from deploy.migrate.weights import read_weights
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig

# Of one file, on a machine that stalls for a second; and bytes beyond those of the first read.
MOST_S, MOST_GROWTH = 20, 500 * 2**20
OPCODES = [each.code.encode("latin1") for each in pickletools.opcodes]
SIZES = [0, 1, 127, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**63]


def originals() -> list[bytes]:
    """Return files of each form, with numbers, arrays and objects of NumPy and of other classes."""
    state = torch.nn.Linear(4, 3).state_dict(prefix="a.")
    extra = {
        "best": np.float64(1),
        "names": np.array(["a", "b"], object),
        "random": np.random.get_state(),
        "of": {1, 2},
    }
    files = []
    for saved in (state, {"model": state, "args": Namespace(lr=0.1), **extra}):
        for is_zip in (True, False):
            torch.save(saved, file := io.BytesIO(), _use_new_zipfile_serialization=is_zip)
            files.append(file.getvalue())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2))), file := io.BytesIO())
    return [*files, file.getvalue(), pickle.dumps(state)]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes, opcodes or numbers."""
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at, length = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 4, 8, 64])
        new = rng.choice(
            [
                b"",
                rng.randbytes(length),
                rng.choice(OPCODES),
                rng.choice(SIZES).to_bytes(8, "little")[:length],
                data[(start := rng.randrange(len(data) + 1)) : start + length] * rng.choice([1, 1, 1000]),
            ]
        )
        data = data[:at] + new + data[at + rng.choice([0, len(new), length]) :]
    return data


def rewrite(file: bytes, rng: random.Random) -> bytes:
    """Mutate the pickle of a ZIP file, or the bytes of any file."""
    if not zipfile.is_zipfile(io.BytesIO(file)) or rng.random() < 0.1:
        return mutate(file, rng)
    with zipfile.ZipFile(io.BytesIO(file)) as source, zipfile.ZipFile(target := io.BytesIO(), "w") as changed:
        for name in source.namelist():
            data = source.read(name)
            changed.writestr(name, mutate(data, rng) if name.endswith("/data.pkl") else data)
    return target.getvalue()


def main(folder: Path, seed: int, count: int) -> None:
    rng, files, entry = random.Random(seed), originals(), ModelEntry("m", "", "", folder)
    path, most, refused = folder / "w.pt", 0, 0
    for number in range(count):
        path.write_bytes(rewrite(rng.choice(files), rng))
        signal.alarm(MOST_S)
        try:
            read_weights(entry, path)
        except (WeightsUnavailable, InvalidConfig) as error:
            assert "\n" not in str(error), error
            refused += 1
        signal.alarm(0)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        most = most or used + MOST_GROWTH
        assert used < most, f"file {number} of seed {seed} takes {used} bytes"
    print(refused)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
