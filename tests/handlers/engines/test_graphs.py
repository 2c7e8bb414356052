"""CUDA graphs, with the CPU in place of a GPU: each row gets its own answer, and anything unusual runs eagerly."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from handlers.engines import ROWS, TOKENS, Budget, Engine, ladder, round_up, steps
from handlers.engines.compilation import attempt
from handlers.engines.graphs import Graphs, Layout
from handlers.engines.torch import TorchEngine
from handlers.errors import OutOfMemory
from handlers.pipeline.task import inputs_of
from handlers.text.inputs import round_length
from tests.handlers.cpu_graphs import GPU, CpuRecorder, use_cpu_graphs, use_graphs
from tests.handlers.serving import DoublingHandler, Log, Patch, started

PLENTY = Budget(60.0, 2.0**31, 8)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 512), st.none() | st.integers(1, 40_000))
def test_rung_is_the_smallest_that_fits(items: int, most_items: int, tokens: int, most_tokens: int | None) -> None:
    example = {"ids": np.zeros((1, tokens), np.int64)}
    rungs = [rows for rows, _ in ladder([example, example], most_items, most_tokens)][::-1]
    wanted = sorted({*(each for each in ROWS if each < most_items), most_items})
    assert rungs == [each for each in wanted if each == 1 or most_tokens is None or each * tokens <= most_tokens]
    rung = round_up(items, rungs)
    assert not [each for each in rungs if items <= each < rung]
    assert items <= rung < 2 * items or rung == 1
    length = round_up(tokens, steps(TOKENS, 512))
    # Texts are padded to this length anyway, so no other module knows the ladder.
    assert tokens <= length <= max(16, 2 * tokens)
    assert round_length(length, 512) == length


@given(st.integers(1, 9), st.integers(0, 7))
def test_block_of_bytes_contains_every_row_once_and_the_first_one_as_padding(rows: int, more: int) -> None:
    chance = np.random.default_rng(rows)
    arrays: dict[str, NDArray[Any]] = {
        "pixels": chance.integers(0, 256, (rows, 3, 5), np.uint8),
        "ids": chance.integers(0, 9, (rows, 7), np.int64),
        "is_set": chance.integers(0, 2, (rows,)).astype(bool),
        "half": chance.normal(size=(rows, 1)).astype(np.float16),
    }
    layout = Layout(arrays, rows + more)
    block = torch.empty(layout.size, dtype=torch.uint8)
    tensors = layout.tensors(block)
    layout.write(arrays, block)
    for name, array in arrays.items():
        wanted = np.concatenate([array, np.repeat(array[:1], more, 0)])
        np.testing.assert_array_equal(tensors[name].numpy(), wanted, strict=True)


class Share(torch.nn.Module):
    """Divides a row by its sum, which is NaN for a row of zeros; the second output is a view of the input."""

    def __init__(self, spoil: Any = lambda share, first, _: (share, first)) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.0))
        self.sizes, self.spoil = list[int](), spoil

    def forward(self, x: torch.Tensor) -> Any:
        self.sizes.append(len(x))
        return self.spoil(self.factor * x / x.sum(1, keepdim=True), x[:, 0], self.sizes)


@pytest.fixture
def recorder(monkeypatch: Patch) -> CpuRecorder:
    return use_cpu_graphs(monkeypatch)


def make(module: torch.nn.Module) -> TorchEngine:
    return TorchEngine(module, GPU, ["x"], ["share", "first"])


def example(width: int = 4) -> dict[str, NDArray[Any]]:
    return {"x": np.arange(1.0, width + 1, dtype=np.float32)[None]}


def ask(engine: TorchEngine, rows: int, seed: int, width: int = 4) -> None:
    x = np.random.default_rng(seed).uniform(1, 2, (rows, width)).astype(np.float32)
    given: Any = torch.from_numpy(x) if seed % 2 else x
    outputs = engine.run({"x": given})
    assert np.allclose(outputs["share"], x / x.sum(1, keepdims=True), atol=1e-6)
    assert np.array_equal(outputs["first"], x[:, 0])


def test_rows_of_any_number_and_thread_get_their_own_outputs_from_the_smallest_graph(recorder: CpuRecorder) -> None:
    module = Share()
    engine = make(module)
    shapes = engine.record([example(), example(6)], PLENTY)
    assert sorted(shapes) == [(rows, width) for rows in (1, 2, 4, 8) for width in (4, 6)]
    module.sizes.clear()
    for rows, width in ((5, 4), (2, 4), (3, 4), (8, 4), (1, 6), (9, 4), (3, 6), (2, 5)):
        ask(engine, rows, rows, width)
    # More rows than the largest graph has, or another width, run as they are.
    assert (module.sizes, recorder.replays - len(shapes)) == ([8, 2, 4, 8, 1, 9, 4, 2], 6)
    first = engine.run({"x": np.ones((3, 4), np.float32)})
    ask(engine, 4, 0)
    assert (first["share"] == 0.25).all() and (first["first"] == 1).all()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda seed: ask(engine, 1 + seed % 10, seed), range(200)))


def lose(share: torch.Tensor, first: torch.Tensor, _: object) -> Any:
    if len(share) > 4:
        raise torch.OutOfMemoryError
    return share, first


SPOILT = {
    "different outputs": lambda share, first, sizes: (share + len(sizes), first),
    "another number of rows": lambda share, *_: (share, share.sum(0)),
}


def test_what_no_graph_can_repeat_or_no_budget_allows_runs_eagerly(recorder: CpuRecorder, caplog: Log) -> None:
    caplog.set_level("INFO")
    plan = [example()]
    assert [shape[0] for shape in make(Share(lose)).record(plan, PLENTY)] == [4, 2, 1]
    assert caplog.messages[-1].startswith("CUDA graphs: 1 without memory, 3 recorded; ")
    assert make(Share()).record(plan, PLENTY._replace(seconds=0.0)) == []
    assert "CUDA graphs: 4 over the budget of time; " in caplog.messages[-1]
    recorder.effort = (0.4, 1.0, 0)
    assert make(Share()).record(plan, PLENTY) == []
    assert "CUDA graphs: 4 gain nothing; " in caplog.messages[-1]
    # All graphs share the memory of the largest; each takes some more.
    recorder.effort, recorder.recorded, recorder.pool_bytes = (1.0, 1.0, 100), 0, [100, 10, 10, 10]
    assert [shape[0] for shape in make(Share()).record(plan, PLENTY._replace(bytes=105.0))] == [8, 4]
    assert "CUDA graphs: 2 recorded, 2 over the budget of memory; " in caplog.messages[-1]
    recorder.pool_bytes = []
    for problem, spoil in SPOILT.items():
        with pytest.raises(ValueError, match=problem):
            make(Share(spoil)).record(plan, PLENTY)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("CUDA error: qzqz")])
def test_replay_that_fails_is_run_again_without_graphs(error: Exception, recorder: CpuRecorder, caplog: Log) -> None:
    engine = make(Share())
    engine.record([example()], PLENTY)
    with patch("handlers.engines.graphs.Rung.run", side_effect=error):
        ask(engine, 3, 0)
    before = recorder.replays
    ask(engine, 3, 1)
    is_memory = isinstance(error, torch.OutOfMemoryError)
    told = [message for message in caplog.messages if message.startswith("CUDA graphs: not used any more")]
    assert (recorder.replays - before, len(told)) == ((1, 0) if is_memory else (0, 1))
    assert "qzqz" not in caplog.text


class Twice(torch.nn.Module):
    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        for _ in range(64):  # so many kernels that a GPU waits for their starts: a graph of one gains nothing
            numbers = numbers + 0
        return 2 * numbers


class OnDevice(DoublingHandler):
    def load(self) -> Engine:
        return TorchEngine(Twice(), self.archive.device, ["numbers"], ["doubles"])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_killed_recording_is_followed_by_none(device: str, tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    use_graphs(monkeypatch, device)
    record, cache, left = Graphs._record, tmp_path / ".cache", tmp_path / "left"

    def note(*given: Any) -> Any:
        # A worker that is inside now does not count.
        with attempt(*cache.iterdir()) as has_ended:
            assert not has_ended
        shutil.copytree(cache, left, dirs_exist_ok=True)
        return record(*given)

    def start() -> OnDevice:
        return started(OnDevice(), tmp_path, {"precision": "fp32", "max_batch_items": 4})

    with patch.object(Graphs, "_record", note):
        start()
    # As a kill would leave the folder.
    shutil.copytree(left, cache, dirs_exist_ok=True)
    assert [inputs_of(start()).overhead.sizes for _ in range(2)] == [(), (1, 2, 4)]
    assert "CUDA graphs: none, RuntimeError: the last worker ended while it recorded" in caplog.messages


@pytest.mark.gpu
def test_gpu_with_little_free_memory_records_less_and_runs_on(monkeypatch: Patch) -> None:
    use_graphs(monkeypatch, "cuda")
    device, hidden = torch.device("cuda", 0), 4096
    engine = TorchEngine(torch.nn.Linear(hidden, hidden, device=device), device, ["input"], ["output"])
    one = {"input": np.ones((1, hidden), np.float32)}
    wanted = engine.run(one)["output"]
    hog = torch.empty(torch.cuda.mem_get_info()[0] - 2**28, dtype=torch.uint8, device=device)
    engine.record([one], PLENTY._replace(max_items=64))
    assert np.allclose(engine.run(one)["output"], wanted, atol=1e-4)
    with pytest.raises(OutOfMemory):
        engine.run({"input": np.ones((2**17, hidden), np.float32)})
    assert np.allclose(engine.run(one)["output"], wanted, atol=1e-4)
    del hog
