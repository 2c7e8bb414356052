"""Cores are counted as the kernel limits them, in made folders of cgroups."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from handlers.engines import available_threads
from handlers.engines.cores import usable_cores

ALLOWED = 64
POD = {"kubepods/pod1/c1/cpu.max": "max 100000", "kubepods/pod1/cpu.max": "200000 100000"}


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/", {"cpu.max": "400000 100000"}, 4, id="a container's limit"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, ALLOWED, id="no limit"),
        pytest.param("0::/", {"cpu.max": "350000 100000"}, 3, id="whole cores"),
        pytest.param("0::/", {"cpu.max": "50000 100000"}, 1, id="less than one"),
        pytest.param("0::/", {}, ALLOWED, id="nothing mounted"),
        pytest.param("0::/kubepods/pod1/c1", POD, 2, id="the pod's limit"),
        pytest.param("0::/kubepods/pod1/c1", {"cpu.max": "300000 100000"}, 3, id="the machine's path in a container"),
        pytest.param("0::/../../pod2", {"cpu.max": "300000 100000"}, 3, id="a path outside of the namespace"),
    ],
)
def test_usable_cores_under_a_limit_are_those_it_amounts_to(
    own: str, files: Mapping[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(ALLOWED)))
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert usable_cores(root, tmp_path / "own") == cores
    assert available_threads(7) == 7
