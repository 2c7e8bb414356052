"""What a worker tries as it loads: every precision, then streams; measured as it serves, for a bounded time, once."""

import logging
import time
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

from handlers.adaptive import trial
from handlers.adaptive.choice import Candidate, Figures, chosen
from handlers.adaptive.trial import Sizes
from handlers.archive_files import Build
from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import Arrangement, Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine
from handlers.proofs import Proof
from handlers.protocol.requests import Payload
from tests.handlers.serving import context

CAPABILITIES = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
FLOATING = "bf16" if "BF16" in CAPABILITIES else "fp32"


def graph(folder: Path, name: str, *, is_int8: bool = False) -> None:
    """Write a matrix product, (B, 64) float32 -> (B, 8); in int8 both of its sides are quantised."""
    rows = ops.parameter([-1, 64], np.float32, name="numbers")
    weights = ops.constant(np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32))
    sides: list[Any] = [rows, weights]
    if is_int8:
        sides = [ops.fake_quantize(side, *(np.float32(bound) for bound in (-4, 4, -4, 4)), 255) for side in sides]
    product = ops.matmul(*sides, False, False)
    product.output(0).set_names({"doubles"})
    rows.output(0).set_names({"numbers"})
    openvino.save_model(openvino.Model([product], [rows]), folder / name, compress_to_fp16=False)


class GraphHandler(BatchHandler[HandlerConfig, float]):
    """Serves such a graph: a number in, a number out."""

    config_class = HandlerConfig
    inputs = frozenset({"number"})

    def load(self) -> Engine:
        return OpenVinoEngine(self.model_dir / "model.xml", precision=self.config.precision, threads=2)

    def sample(self) -> Payload:
        return Payload("1")

    def decode(self, payload: Payload) -> float:
        return float(str(payload.value))

    def collate(self, items: Sequence[float]) -> Arrays:
        return {"numbers": np.repeat(np.array(items, np.float32)[:, None], 64, axis=1)}

    def split(self, outputs: Outputs, items: Sequence[float]) -> list[float]:
        return [float(row.sum()) for row in outputs["doubles"]]


# Seconds of an item, by precision and number of streams.
Taking = Mapping[tuple[str, int], float]


class Way:
    """An engine whose items take a known time, in each precision and number of streams; `made` has what was tried."""

    deals_out = False
    input_names = ("numbers",)

    def __init__(self, taking: Taking, made: list[str], precision: str = "") -> None:
        self.taking, self.made = taking, made
        self.precisions = (precision,) if precision else tuple(dict.fromkeys(name for name, _ in taking))
        self.stream_counts = tuple(dict.fromkeys(count for _, count in taking))
        self._precision = precision or self.precisions[0]
        self.description = f"known cpu {self._precision}"
        self._streams = 1
        self.runs: list[int] = []

    def in_precision(self, precision: str) -> "Way":
        if self.precisions == (precision,):
            return self
        self.made.append(precision)
        other = Way(self.taking, self.made, precision)
        other.stream_counts = self.stream_counts
        return other

    def divide(self, streams: int) -> Arrangement:
        if streams == 1:
            return Arrangement(self)
        self.made.append(f"{self._precision} {streams}")
        parts = [Way(self.taking, self.made, self._precision) for _ in range(streams)]
        for part in parts:
            part._streams = streams
        return Arrangement(self, parts)

    def run(self, inputs: Arrays) -> Outputs:
        self.runs.append(len(inputs["numbers"]))
        time.sleep(self.taking[self._precision, self._streams] * len(inputs["numbers"]))
        return {"doubles": inputs["numbers"]}


class WayHandler(GraphHandler):
    """Serves it."""

    taking: Taking
    made: list[str]

    def load(self) -> Engine:
        return Way(self.taking, self.made)


def loaded(
    handler: BatchHandler[Any, Any], folder: Path, *, mode: str = "adaptive", **settings: Any
) -> BatchHandler[Any, Any]:
    scheduling = {"mode": mode, "warm_up_s": 0, **settings.pop("scheduling", {})}
    made = context(folder, {"max_items": 8, "scheduling": scheduling, **settings}, batch_size=8)
    made.model_yaml_config["continuousBatching"] = mode == "adaptive"
    handler.initialize(made)
    return handler


def known(taking: Taking) -> WayHandler:
    handler = WayHandler()
    handler.taking, handler.made = taking, []
    return handler


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    graph(tmp_path, "model.xml")
    graph(tmp_path, "model-int8.xml", is_int8=True)
    prove(tmp_path)
    return tmp_path


def prove(folder: Path, fingerprint: str = "0123", **agreements: float) -> None:
    proofs = {name: Proof("top-1", share, None, 100, 0.99).to_json() for name, share in agreements.items()}
    (folder / "build.json").write_text(Build(fingerprint, "none", False, {}, proofs=proofs).to_json())


SLOW_S = 0.008
WAYS = {("a", 1): SLOW_S, ("b", 1): SLOW_S / 4, ("a", 2): 0.0, ("b", 2): SLOW_S / 4}


def test_every_precision_is_tried_then_the_best_one_in_streams_and_all_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    prove(tmp_path)
    handler = known(WAYS)
    with caplog.at_level(logging.WARNING):
        loaded(handler, tmp_path)
    # Streams of b run side by side and take as long as b whole: twice as many in the same time.
    assert handler.made[-1] == "b 2"
    assert "a 2" not in handler.made
    assert handler.engine.description == "known cpu b"
    (line,) = [each for each in caplog.messages if each.startswith("Runs ")]
    assert line.startswith("Runs b in 2 streams: ms an item alone and among ") and "a whole " in line
    again = known(WAYS)
    with patch.object(trial, "measure", side_effect=AssertionError("measured again")):
        loaded(again, tmp_path)
    # One item on each engine that serves, so that no request pays for a first time.
    assert again.made == ["b", "b 2"]
    # What is remembered is of this archive, and of no file that is broken.
    (remembered,) = (tmp_path / ".cache").iterdir()
    remembered.write_text('{"b whole, alone": [[true, 0.1]]}')
    for fingerprint in ("0123", "4567"):
        prove(tmp_path, fingerprint)
        with patch.object(trial, "measure", lambda *_: [(1, 0.1)]):
            loaded(known(WAYS), tmp_path)
    assert len(list((tmp_path / ".cache").iterdir())) == 2


def test_classic_mode_has_no_streams_and_measures_nothing_where_there_is_no_choice(tmp_path: Path) -> None:
    with patch.object(trial, "measure", side_effect=AssertionError("measured")):
        handler = loaded(known({("a", 1): 0.0, ("a", 2): 0.0}), tmp_path, mode="classic")
    assert isinstance(handler, WayHandler)
    assert not any(made.endswith("2") for made in handler.made)


def test_trial_begins_nothing_that_would_take_longer_than_is_left_and_forgets_what_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    prove(tmp_path)
    handler = known({("a", 1): SLOW_S, ("a", 2): 0.0})
    with patch.object(trial, "TUNING", trial.Tuning(trial_s=0.001)), caplog.at_level(logging.WARNING):
        loaded(handler, tmp_path)
    assert not any(made.endswith("2") for made in handler.made)
    assert "no time for a in 2 streams" in caplog.text
    # Another start may have it.
    assert not (tmp_path / ".cache").exists()


BF16, INT8, STREAMS = Candidate("bf16", 1), Candidate("int8", 1), Candidate("int8", 2)


@pytest.mark.parametrize(
    ("figures", "taken"),
    [
        # ResNet-152 on a processor with AMX: int8 is slower for one, and faster by more for many.
        ({BF16: (0.0182, 0.0130), INT8: (0.0217, 0.0073)}, INT8),
        ({BF16: (0.004, 0.002), INT8: (0.002, 0.004)}, BF16),
        # Less than what a shared machine's times are certain to is no reason to leave the likeliest.
        ({BF16: (0.100, 0.100), INT8: (0.098, 0.098)}, BF16),
        ({BF16: (0.02, 0.02), INT8: (0.02, 0.012), STREAMS: (0.02, 0.009)}, STREAMS),
    ],
)
def test_chosen_has_the_least_product_of_an_items_times_and_is_the_likeliest_unless_it_is_clear(
    figures: dict[Candidate, tuple[float, float]], taken: Candidate
) -> None:
    assert chosen({each: Figures(*times) for each, times in figures.items()}) == taken


@pytest.mark.parametrize(
    ("most_items", "longest_s", "item_s", "sizes"),
    [(64, inf, 0.001, (8, 64)), (64, inf, 0.025, (4,)), (64, 0.05, 0.01, (5,)), (1, inf, 0.001, ())],
)
def test_sizes_are_typical_and_the_largest_as_far_as_they_are_quick(
    most_items: int, longest_s: float, item_s: float, sizes: tuple[int, ...]
) -> None:
    measured = Sizes(most_items, longest_s)
    assert measured.beyond(item_s) == sizes
    # Those of the first candidate are everyone's.
    assert measured.beyond(item_s / 1000) == sizes


def test_int8_is_an_archives_graph_and_gives_nearly_its_answers(archive: Path) -> None:
    whole = loaded(GraphHandler(), archive, precision="fp32")
    narrow = loaded(GraphHandler(), archive, precision="int8", mode="classic")
    assert narrow.engine.description == "openvino cpu int8"
    assert narrow.metadata.precision == "int8"
    inputs = whole.collate([1.0, -2.0])
    exact, quantised = (each.engine.run(inputs)["doubles"] for each in (whole, narrow))
    assert not np.array_equal(exact, quantised)
    np.testing.assert_allclose(quantised, exact, atol=0.05 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("agreements", "precisions"),
    [
        ({}, (FLOATING, "int8")),
        ({"int8": 0.5}, (FLOATING,)),
        ({"bf16": 0.5}, ("fp32", "int8")),
        ({"bf16": 1.0, "int8": 0.99}, (FLOATING, "int8")),
    ],
)
def test_precision_whose_proof_does_not_hold_is_no_candidate(
    archive: Path, agreements: dict[str, float], precisions: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    prove(archive, **agreements)
    assert OpenVinoEngine(archive / "model.xml").precisions == precisions
    with caplog.at_level(logging.WARNING):
        handler = loaded(GraphHandler(), archive, scheduling={"streams": 1})
    assert handler.metadata.precision in precisions
    assert handler.engine.description == f"openvino cpu {handler.metadata.precision}"
    # Both are measured and told of; where there is no choice, there is nothing to tell.
    assert [f"{precision} whole " in caplog.text for precision in precisions] == [len(precisions) > 1] * len(precisions)
    assert " streams" not in caplog.text
