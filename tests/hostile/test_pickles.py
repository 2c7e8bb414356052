"""A malformed file of weights is read, or rejected in one line: no signal, no hang and no growth."""

import functools
import io
import pickle
import pickletools
import time
import warnings
import zipfile
from argparse import Namespace
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.archives.migrate.weights import read_weights
from deploy.archives.sources import WeightsUnavailable
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from tests.handlers.vision.test_images import peak_bytes

# Seconds and bytes of one file, on a machine that stalls for a second.
MOST_S, MOST_BYTES = 20, 500 * 2**20
OPCODES = [each.code.encode("latin1") for each in pickletools.opcodes]
SIZES = [0, 1, 127, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**63]
# A place, a length, and what replaces these bytes: others, or so many copies.
NEW = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([b"", *OPCODES, *(size.to_bytes(8, "little") for size in SIZES)]),
    st.sampled_from([1, 2, 1000]),
)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 64), NEW), min_size=1, max_size=16)


@functools.cache
def originals() -> list[bytes]:
    """Return files of each form, with numbers, arrays and objects of NumPy and of other classes."""
    state = torch.nn.Linear(4, 3).state_dict(prefix="a.")
    names = np.array(["a", "b"], object)
    extra = {"best": np.float64(1), "names": names, "random": np.random.get_state(), "of": {1, 2}}
    files = []
    for saved in (state, {"model": state, "args": Namespace(lr=0.1), **extra}):
        for is_zip in (True, False):
            torch.save(saved, file := io.BytesIO(), _use_new_zipfile_serialization=is_zip)
            files.append(file.getvalue())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2))), file := io.BytesIO())
    return [*files, file.getvalue(), pickle.dumps(state)]


def changed(data: bytes, edits: list[tuple[int, int, bytes | int]]) -> bytes:
    for place, length, new in edits:
        at = place % (len(data) + 1)
        piece = data[at : at + length] * new if isinstance(new, int) else new
        data = data[:at] + piece + data[at + length :]
    return data


def written(number: int, edits: list[tuple[int, int, bytes | int]], is_whole: bool) -> bytes:
    """Change the pickle of a ZIP file, or the bytes of any file."""
    file = originals()[number]
    if is_whole or not zipfile.is_zipfile(io.BytesIO(file)):
        return changed(file, edits)
    with zipfile.ZipFile(io.BytesIO(file)) as source, zipfile.ZipFile(target := io.BytesIO(), "w") as copy:
        for name in source.namelist():
            data = source.read(name)
            copy.writestr(name, changed(data, edits) if name.endswith("/data.pkl") else data)
    return target.getvalue()


@pytest.mark.builds
def test_malformed_file_of_weights_is_read_or_rejected(tmp_path: Path) -> None:
    entry, seen = ModelEntry("m", "", "", tmp_path), Counter[bool]()

    @settings(max_examples=3 * settings().max_examples, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 5), EDITS, st.booleans())
    def holds(number: int, edits: list[tuple[int, int, bytes | int]], is_whole: bool) -> None:
        (tmp_path / "w.pt").write_bytes(written(number, edits, is_whole))
        peak_bytes()
        before, began_s = peak_bytes(), time.process_time()
        try:
            read_weights(entry, tmp_path / "w.pt")
            seen[True] += 1
        except (WeightsUnavailable, InvalidConfig) as error:
            assert "\n" not in str(error)
            seen[False] += 1
        assert time.process_time() - began_s < MOST_S
        assert peak_bytes() - before < MOST_BYTES

    holds()
    assert all(seen[is_read] for is_read in (True, False)), seen
    assert {path.name for path in tmp_path.iterdir()} == {"w.pt"}
