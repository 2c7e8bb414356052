"""The trial while a worker loads: every precision, then streams; measured as in serving, for a bounded time, once."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

from handlers.batching import measurements, trial
from handlers.batching.measurements import Candidate
from handlers.batching.trial import choose_candidate
from handlers.engines import Arrangement, Arrays, Engine, Outputs
from handlers.engines.compilation import attempt, note_crash, read_crash
from tests.handlers.serving import DoublingHandler, Log, Patch, started, write_build
from tests.tables import table

# Seconds of an item, by precision and number of streams.
Taking = Mapping[tuple[str, int], float]


class Way:
    """An engine whose items take a known time in each precision and number of streams; `made` lists its copies."""

    deals_out = False
    input_names = ("numbers",)

    def __init__(self, taking: Taking, made: list[str], precision: str = "", streams: int = 1) -> None:
        self.taking, self.made = taking, made
        self.precisions = (precision,) if precision else tuple(dict.fromkeys(name for name, _ in taking))
        self.stream_counts = tuple(dict.fromkeys(count for _, count in taking))
        self._precision, self._streams = precision or self.precisions[0], streams
        self.description = f"known cpu {self._precision}"

    def in_precision(self, precision: str) -> "Way":
        if self.precisions == (precision,):
            return self
        self.made.append(precision)
        return Way(self.taking, self.made, precision)

    def divide(self, streams: int) -> Arrangement:
        if streams == 1:
            return Arrangement(self)
        self.made.append(f"{self._precision} {streams}")
        return Arrangement(self, [type(self)(self.taking, self.made, self._precision, streams) for _ in range(streams)])

    def run(self, inputs: Arrays) -> Outputs:
        time.sleep(self.taking[self._precision, self._streams] * len(inputs["numbers"]))
        return {"doubles": inputs["numbers"]}


class WayHandler(DoublingHandler):
    def __init__(self, taking: Taking, kind: type[Way] = Way) -> None:
        super().__init__()
        self.taking, self.kind, self.made = taking, kind, list[str]()

    def load(self) -> Engine:
        return self.kind(self.taking, self.made)


def load(handler: WayHandler, folder: Path, *, mode: str = "adaptive", **scheduling: Any) -> WayHandler:
    settings = {"max_batch_items": 16, "scheduling": {"mode": mode, **scheduling}}
    return started(handler, folder, settings, batch_size=8, continuousBatching=mode == "adaptive")


SLOW_S = 0.008
WAYS = {("a", 1): SLOW_S, ("b", 1): SLOW_S / 4, ("a", 2): 0.0, ("b", 2): SLOW_S / 4}


def test_all_precisions_are_tried_then_streams_and_remembered(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    monkeypatch.setattr(measurements, "version", Mock(side_effect=PackageNotFoundError))
    write_build(tmp_path)
    handler = WayHandler(WAYS)
    load(handler, tmp_path)
    # Streams of b run side by side and take as long as b whole: twice as many in the same time.
    assert (handler.made[-1], "a 2" in handler.made, handler.engine.description) == ("b 2", False, "known cpu b")
    (line,) = [each for each in caplog.messages if each.startswith("Selected ")]
    assert line.startswith("Selected b in 2 streams; ms per item, single / concurrent") and "a whole " in line
    again = WayHandler(WAYS)
    with patch.object(trial, "measure", side_effect=AssertionError("measured again")):
        load(again, tmp_path)
    # One item on each engine that serves, so that no request pays for a first time.
    assert again.made == ["b", "b 2"]
    (remembered,) = (tmp_path / ".cache").glob("*.json")
    remembered.write_text('[[["b", 1], [[[true, 0.1]], []]]]')
    for fingerprint in ("f1", "f2"):
        write_build(tmp_path, fingerprint=fingerprint)
        with patch.object(trial, "measure", return_value=[(1, 0.1)]) as measured:
            load(WayHandler(WAYS), tmp_path)
        # A full micro-batch has at most the requests of a window.
        assert measured.call_args.args[2](trial.FULL_S / 99) == 8


def test_trial_ends_with_its_time_and_remembers_no_part(tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    write_build(tmp_path)
    ways = {("a", 1): SLOW_S, ("a", 2): 0.0}
    with patch.object(trial, "TRIAL_S", -1.0):
        handlers = [load(WayHandler(ways), tmp_path)]
    # Classic mode has no streams, and measures nothing where there is no choice.
    with patch.object(trial, "measure", side_effect=AssertionError("measured")):
        handlers.append(load(WayHandler(ways), tmp_path, mode="classic"))
    assert not any(made.endswith("2") for handler in handlers for made in handler.made)
    assert "lack of time: a in 2 streams" in caplog.text and not [*(tmp_path / ".cache").glob("*.json")]


def test_workers_that_start_together_measure_once_and_take_the_same(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    write_build(tmp_path)
    handlers = [WayHandler({("a", 1): a_s, ("b", 1): SLOW_S - a_s}) for a_s in (0.001, SLOW_S - 0.001)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: load(each, tmp_path, mode="classic"), handlers))
    assert len({each.engine.description for each in handlers}) == 1


class BesideDecoders(Way):
    """Passes on all threads take three times as long while another thread decodes; passes in streams do not."""

    def run(self, inputs: Arrays) -> Outputs:
        is_shared = any(each.name == "trial-decoder" for each in threading.enumerate())
        if self._streams == 1 and is_shared:
            super().run(inputs)
            super().run(inputs)
        return super().run(inputs)


def test_an_adaptive_worker_is_measured_beside_a_thread_that_decodes(tmp_path: Path, caplog: Log) -> None:
    # Without the decoder, streams take as long for all items as the whole engine does.
    load(WayHandler({("a", 1): SLOW_S, ("a", 2): 2 * SLOW_S}, BesideDecoders), tmp_path)
    assert "Selected a in 2 streams" in caplog.text


@table(
    # The whole engine has as many tries as its streams.
    ("adaptive", {"a": [0.1], "a a": [0.1]}, "a whole 100.00 / 100.00, a in 2 streams 100.00 / 50.00"),
    # Twice as slow in both sizes, and by more: one try.
    ("classic", {"a": [0.1, 0.05], "b": [0.3, 0.15]}, "a whole 100.00 / 12.50, b whole 300.00 / 37.50"),
    # The machine stalled during one of both.
    ("classic", {"a": [0.1, 0.05], "b": [0.3, 0.05]}, "a whole 100.00 / 12.50, b whole 300.00 / 12.50"),
)
def test_candidates_have_equal_tries_or_are_slower(
    mode: str, seconds: Any, told: str, tmp_path: Path, caplog: Log
) -> None:
    tried: list[str] = []

    def measure(tasks: Sequence[Any], _: Any, count_full: Callable[[float], int], *__: Any) -> list[tuple[int, float]]:
        # As many items as the first candidate does in FULL_S.
        assert count_full(trial.FULL_S / (3.5 + len(tried))) == 3
        # "a a" is two streams of a.
        tried.append(" ".join(task.engine.description[-1] for task in tasks))
        return list(zip([2, 8], seconds[tried[-1]], strict=False))

    ways = {(name[0], name.count("a a") + 1): 0.0 for name in seconds}
    with patch.object(trial, "measure", measure):
        load(WayHandler(ways), tmp_path, mode=mode)
    is_far = "37.50" in told
    assert tried == ["a", "b", *["a"] * (trial.ROUNDS - 1)] if is_far else [*seconds] * trial.ROUNDS
    assert f"ms per item, single / concurrent: {told}" in [each.partition("; ")[2] for each in caplog.messages]


BF16, INT8, STREAMS = Candidate("bf16", 1), Candidate("int8", 1), Candidate("int8", 2)


@table(
    # ResNet-152 on a processor with AMX: int8 is slower for one, and faster by more for many.
    ({BF16: (0.0182, 0.0130), INT8: (0.0217, 0.0073)}, INT8),
    # Equal, and by less than the noise of a shared machine.
    *(({BF16: (0.004, 0.002), INT8: (0.002, 0.004)}, BF16), ({BF16: (0.1, 0.1), INT8: (0.098, 0.098)}, BF16)),
    ({BF16: (0.02, 0.02), INT8: (0.02, 0.012), STREAMS: (0.02, 0.009)}, STREAMS),
)
def test_chosen_has_the_least_product_of_times_and_is_likeliest_unless_it_is_clear(figures: Any, taken: Any) -> None:
    assert choose_candidate(figures) == taken


Change = Callable[[Path], object]


@table(
    lambda path: path.symlink_to(path.with_name("other")),
    os.mkfifo,
    lambda path: path.hardlink_to(path.with_name("other")),
    lambda path: path.mkdir(),
)
def test_cache_that_others_may_write_neither_empties_files_nor_blocks(change: Change, tmp_path: Path) -> None:
    (other := tmp_path / "other").write_text("4")
    path = tmp_path / "measured-a.json"
    for file in (path, path.with_suffix(".lock"), tmp_path / "crash", tmp_path / "graphs"):
        change(file)
    with measurements.lock(path), note_crash(tmp_path / "crash"), attempt(tmp_path / "graphs") as has_ended:
        assert (has_ended, measurements.load(path), read_crash(tmp_path / "crash")) == (False, None, "")
    measurements.write(path, [3])
    assert (other.read_text(), measurements.load(path)) == ("4", None if path.is_dir() else [3])


def test_lock_that_is_held_for_too_long_is_passed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(measurements, "LOCK_S", 0.1)
    began_s, path = time.monotonic(), tmp_path / "measured-a.json"
    with measurements.lock(path), measurements.lock(path):
        assert time.monotonic() - began_s >= 0.1
