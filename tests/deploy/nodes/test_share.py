import os
import subprocess
import sys

import pytest

from deploy.nodes.share import Share, gpus_here, on_cores, shares, shortage, visible_gpu


@pytest.mark.parametrize(
    ("cores", "nodes", "expected"),
    [
        ([0, 1, 2, 3], 2, [(0, 1), (2, 3)]),
        ([0, 1, 2, 3, 4], 2, [(0, 1), (2, 3, 4)]),
        # Only some of the machine's may be used.
        ([2, 5, 7], 3, [(2,), (5,), (7,)]),
        ([0, 1], 3, [(0,), (1,), (0,)]),
    ],
)
def test_cores_are_split_evenly_and_shared_only_where_there_are_too_few(
    cores: list[int], nodes: int, expected: list[tuple[int, ...]]
) -> None:
    assert [share.cores for share in shares(cores, [], nodes)] == expected


def test_node_alone_has_the_whole_machine() -> None:
    assert shares([0, 1, 2, 3], ["0", "1"], 1) == [Share()]
    assert shortage([0], ["0"], 1) is None


def test_each_node_has_a_gpu_of_its_own_while_there_are_some() -> None:
    assert [share.gpu for share in shares(range(8), ["0", "3"], 2)] == ["0", "3"]
    assert [share.gpu for share in shares(range(8), ["0", "3"], 3)] == ["0", "3", "0"]
    assert visible_gpu(Share((0,), "3")) == {"CUDA_VISIBLE_DEVICES": "3"}
    assert visible_gpu(Share((0,))) == {}


@pytest.mark.parametrize(
    ("cores", "gpus", "nodes", "words"),
    [
        (2, 0, 2, None),
        (2, 0, 3, "3 nodes share 2 cores"),
        (8, 1, 2, "2 nodes share 1 GPU"),
        (1, 2, 4, "4 nodes share 2 GPUs and 1 core"),
    ],
)
def test_what_must_be_shared_is_said(cores: int, gpus: int, nodes: int, words: str | None) -> None:
    assert shortage(range(cores), [str(gpu) for gpu in range(gpus)], nodes) == words


@pytest.mark.parametrize(
    ("visible", "gpus"), [("1,3", ["1", "3"]), ("GPU-8932f937", ["GPU-8932f937"]), ("", []), ("-1", [])]
)
def test_gpus_are_those_that_the_environment_leaves(visible: str, gpus: list[str]) -> None:
    assert gpus_here({"CUDA_VISIBLE_DEVICES": visible}) == gpus


def test_what_is_started_on_a_share_sees_its_cores_and_the_starter_keeps_its_own() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    with on_cores(Share((first,))):
        # A child of a child, as a worker is one of Java.
        seen = "import os, subprocess, sys; print(subprocess.check_output([sys.executable, '-c', " + (
            "'import os; print(os.sched_getaffinity(0))']).decode())"
        )
        printed = subprocess.check_output([sys.executable, "-c", seen], text=True)
    assert printed.strip() == str({first})
    assert os.sched_getaffinity(0) == before
