"""A precision is used where it has been compared with fp32: on this kind of processor, once, with a task's measure."""

import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from handlers.archive_files import BUILD, Build, hash_files
from handlers.batching import accuracy, measurements
from handlers.engines import Arrays, Engine, Outputs
from handlers.engines.cores import read_processor
from handlers.errors import InvalidConfig
from handlers.precision.answers import NUMBERS as REGRESSION
from handlers.precision.answers import answer_items, make_proof
from handlers.precision.comparisons import Boxes, Span
from handlers.precision.samples import MOST_BYTES, SAMPLES, Samples, name_place, read_samples
from handlers.proofs import Proof
from handlers.protocol.requests import Payload
from handlers.tasks.image_segmentation import ImageSegmentationHandler
from handlers.tasks.object_detection import ObjectDetectionHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.reranking import RerankingHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from tests.handlers.serving import DoublingHandler, Log, Patch, started
from tests.tables import table

ELSEWHERE = "GenuineIntel 6 avx2 avx512_bf16; openvino 2026.4.0"
NUMBERS = range(1, 31)
SLOW_S = 0.004
RIGHT, WRONG = 1.001, -0.5  # factors of bf16's outputs


class Doubler:
    """An engine with a slow fp32, and a quick bf16 and int8, each with a factor that its outputs have."""

    input_names = ("numbers",)

    def __init__(self, factors: Mapping[str, float], ran: list[str], precision: str = "auto") -> None:
        self.factors, self.ran = factors, ran
        self.precisions = tuple(factors) if precision == "auto" else (precision,)
        self.precision = self.precisions[0]
        self.description = f"known cpu {self.precision}"

    def in_precision(self, precision: str) -> "Doubler":
        return Doubler(self.factors, self.ran, precision)

    def run(self, inputs: Arrays) -> Outputs:
        self.ran.append(self.precision)
        time.sleep(SLOW_S if self.precision == "fp32" else 0)
        doubles = 2 * inputs["numbers"] * np.float32(self.factors[self.precision])
        return {"doubles": doubles, "logits": doubles[:, None]}


class Doubling(DoublingHandler):
    answer_kind = REGRESSION

    def __init__(self, bf16: float, int8: float = 1.0) -> None:
        super().__init__()
        self.factors, self.ran = {"bf16": bf16, "fp32": 1.0, "int8": int8}, list[str]()

    def load(self) -> Engine:
        return Doubler(self.factors, self.ran, self.config.precision)


def stage(folder: Path, place: str | None = ELSEWHERE, **agreements: float) -> Path:
    """Write an archive with samples of a build at `place`, or without samples, and with proofs."""
    folder.mkdir(exist_ok=True)
    if place is not None:
        answers = [np.array([2.0 * number], np.float32) for number in NUMBERS]
        payloads = [Payload(str(number)) for number in NUMBERS]
        Samples(place, None, payloads, answers).write(folder / SAMPLES)
    files = {SAMPLES: folder / SAMPLES} if place else {}
    proofs = {name: Proof("values", each, 0.0, 30, 0.98).to_json() for name, each in agreements.items()}
    (folder / BUILD).write_text(Build("f1", "weights", False, hash_files(files), proofs=proofs).to_json())
    return folder


def load(handler: Doubling, folder: Path, precision: str = "auto", mode: str = "classic") -> str:
    settings = {"max_batch_items": 4, "precision": precision, "scheduling": {"mode": mode}}
    started(handler, folder, settings, continuousBatching=mode == "adaptive")
    return handler.engine.description.rpartition(" ")[2]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: Patch) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)


@table("classic", "adaptive")
def test_quick_and_wrong_precision_is_not_chosen_and_compared_once(mode: str, tmp_path: Path, caplog: Log) -> None:
    folder = stage(tmp_path, int8=1.0)
    handler = Doubling(WRONG, int8=RIGHT)
    assert load(handler, folder, mode=mode) == "int8" and "bf16" in handler.ran
    (line,) = [each for each in caplog.messages if each.startswith("Not used: ")]
    assert line.startswith("Not used: bf16, values 0.0000 of 30 samples") and "less than 0.98 on this processor" in line
    proofs = handler.archive.metadata.proofs
    assert proofs["bf16"]["agreement"] == 0 and proofs["int8"]["agreement"] > 0.99
    with patch.object(accuracy, "answer_items", side_effect=AssertionError("compared again")):
        again = Doubling(WRONG, int8=RIGHT)
        assert load(again, folder, mode=mode) == "int8" and "bf16" not in again.ran
    assert caplog.text.count("Not used: bf16, values 0.0000") == 2


@table(
    # Proven elsewhere, and wrong or right here.
    *((ELSEWHERE, 1.0, WRONG, "fp32"), (ELSEWHERE, 0.5, RIGHT, "bf16")),
    # Not compared elsewhere, and wrong or right here.
    *((ELSEWHERE, None, WRONG, "fp32"), (ELSEWHERE, None, RIGHT, "bf16")),
    # Proven here by the build, which compared more inputs than an archive keeps.
    *(("here", 1.0, WRONG, "bf16"), ("here", 0.5, RIGHT, "fp32"), ("here", None, WRONG, "fp32")),
    # Without samples there is no processor on which a proof counts.
    *((None, 1.0, RIGHT, "fp32"), (None, 0.5, RIGHT, "fp32"), (None, None, RIGHT, "fp32")),
)
def test_proof_of_another_processor_is_made_again(
    place: str | None, proof: float | None, bf16: float, served: str, tmp_path: Path
) -> None:
    proofs = {} if proof is None else {"bf16": proof}
    folder = stage(tmp_path, name_place() if place == "here" else place, **proofs)
    assert load(Doubling(bf16, int8=WRONG), folder) == served


@table((WRONG, "Used as `precision` sets it: bf16, values 0.0000"), (RIGHT, ""))
def test_precision_that_the_owner_names_is_used_with_a_warning(
    bf16: float, words: str, tmp_path: Path, caplog: Log
) -> None:
    assert load(Doubling(bf16), stage(tmp_path), "bf16") == "bf16"
    assert words in caplog.text and ("Used as" in caplog.text) is bool(words)


def test_worker_without_a_store_compares_at_each_start(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CACHE_DIR", str(tmp_path / "archive" / SAMPLES))  # a file, in which nothing can be stored
    for _ in range(2):
        assert load(handler := Doubling(WRONG, int8=WRONG), stage(tmp_path / "archive")) == "fp32"
        assert {"bf16", "int8"} <= {*handler.ran}


def test_damaged_proofs_of_an_earlier_start_are_made_again(tmp_path: Path) -> None:
    folder = stage(tmp_path)
    load(Doubling(WRONG, int8=WRONG), folder)
    (path,) = (folder / ".cache").glob("measured-*.json")
    nan = path.read_bytes().replace(b'"agreement": 0.0', b'"agreement": NaN')
    for damage in (b"", b"[1]", nan, b"\xff", b"[" * 9999):
        path.write_bytes(damage)
        assert load(handler := Doubling(WRONG, int8=WRONG), folder) == "fp32" and "bf16" in handler.ran


def test_samples_that_cannot_be_read_or_answered_mean_fp32(tmp_path: Path, caplog: Log) -> None:
    for part, words in ((b"", "cannot be read"), (None, "bf16: not compared with fp32: ")):
        folder = stage(tmp_path / str(words[:4]))
        if part is None:
            Samples(ELSEWHERE, None, [Payload("no number")], [np.zeros(1)]).write(folder / SAMPLES)
        else:
            (folder / SAMPLES).write_bytes(part)
        (folder / BUILD).write_text(Build("f1", "weights", False, hash_files({SAMPLES: folder / SAMPLES})).to_json())
        assert load(Doubling(RIGHT), folder) == "fp32"
        assert words in caplog.text


def test_comparison_ends_before_its_time_is_over() -> None:
    clock = [0.0]

    class Task(Doubling):
        def forward(self, inputs: Arrays, items: Any) -> Outputs:
            clock[0] += 0.1 * len(items)
            return super().forward(inputs, items)

    task = Task(RIGHT)
    task.config = task.config_class()
    engine = Doubler({"bf16": RIGHT}, [])
    with patch("handlers.precision.answers.time.perf_counter", lambda: clock[0]):
        answers = answer_items(task, [float(number) for number in NUMBERS], engine, 2.0, REGRESSION)
    # The first run, in which an engine prepares itself, then as many as end within two seconds.
    assert 15 <= len(answers) <= 21 and clock[0] <= 2.1 + 1e-6
    assert make_proof(REGRESSION, [np.array([2.0 * number]) for number in NUMBERS][: len(answers)], answers).holds


def test_precision_that_is_too_slow_to_compare_is_not_used_and_not_tried_again(tmp_path: Path, caplog: Log) -> None:
    clock = [0.0]

    class Slow(Doubling):
        def forward(self, inputs: Arrays, items: Any) -> Outputs:
            clock[0] += 0.15 * len(items) if self.engine.description.endswith("bf16") else 0.0
            return super().forward(inputs, items)

    folder, words = stage(tmp_path), "only 7 of 8 samples in 1 s"
    with patch("handlers.precision.answers.time.perf_counter", lambda: clock[0]):
        assert (
            load(Slow(RIGHT, int8=WRONG), folder) == "fp32" and f"bf16: not compared with fp32: {words}" in caplog.text
        )
    assert clock[0] <= 1.0 + 0.15  # the first run prepares the engine
    assert load(again := Doubling(RIGHT, int8=RIGHT), folder) == "fp32" and {*again.ran} == {"fp32"}
    (path,) = (folder / ".cache").glob("measured-*.json")
    assert f"bf16: at an earlier start, {words}; remove {path} to compare again" in caplog.text
    path.unlink()
    assert load(Doubling(RIGHT, int8=WRONG), folder) == "bf16"


def test_what_has_no_measure_is_no_agreement_and_no_nan() -> None:
    nan = np.full(4, np.nan)
    kinds = (RerankingHandler.answer_kind, SentenceEmbeddingHandler.answer_kind, REGRESSION)
    values: list[list[Any]] = [[1.0], [nan] * 8, [nan] * 8]
    for kind, exact in zip(kinds, values, strict=True):
        proof = make_proof(kind, exact, exact)
        json.dumps(proof.to_json(), allow_nan=False)
        assert not proof.is_enough


def test_without_fp32_nothing_runs_in_a_precision_that_failed(tmp_path: Path) -> None:
    handler = Doubling(WRONG, int8=WRONG)
    del handler.factors["fp32"]  # as after a compilation that ended a former process
    with pytest.raises(InvalidConfig, match="none of bf16, int8 agrees with fp32 on this processor"):
        load(handler, stage(tmp_path))


def test_stored_proofs_can_be_read_by_every_user_and_a_failure_leaves_no_file(tmp_path: Path) -> None:
    measurements.write(path := tmp_path / "measured.json", {"bf16": 1})
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        measurements.write(path, {"bf16": object()})
    assert [*tmp_path.iterdir()] == [path]


BOXES = Boxes(np.array(["cat", "dog"], object), np.array([0.9, 0.8]), np.array([[0, 0, 9, 9], [1, 1, 4, 4]], float))
NO_BOXES = Boxes(*(each[:0] for each in BOXES))


@table(
    *((QuestionAnsweringHandler, Span(3, 9, 0.7, 0.4)), (ObjectDetectionHandler, BOXES), (RerankingHandler, -1.25)),
    *((ObjectDetectionHandler, NO_BOXES), (TokenClassificationHandler, np.eye(3))),
    (ImageSegmentationHandler, np.ones((4, 5), np.int64)),
)
def test_kept_answers_agree_with_themselves(handler: Any, answer: Any, tmp_path: Path) -> None:
    payloads = [Payload(value) for value in (b"\xff\xd8", "text", {"question": "Who?", "context": "She."})]
    Samples("here", 0.9, payloads, [answer] * 3).write(tmp_path / SAMPLES)
    found = read_samples(tmp_path, handler.answer_kind)
    assert found is not None
    assert (found.place, found.least, list(found.payloads)) == ("here", 0.9, payloads)
    same = handler.answer_kind.compare([answer] * 3, found.answers)
    # Nothing surely found is no agreement.
    assert same.agreement == (0.0 if answer is NO_BOXES else 1.0) and same.largest_change == 0.0


def test_samples_are_bounded_in_bytes(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    payloads = [Payload(noise.bytes(400_000)) for _ in range(8)]
    Samples("here", None, payloads, [0.0] * 8).write(tmp_path / SAMPLES)
    found = read_samples(tmp_path, REGRESSION)
    assert found is not None and 3 <= len(found.answers) == len(found.payloads) <= 5
    assert (tmp_path / SAMPLES).stat().st_size <= MOST_BYTES


def test_kind_of_processor_is_its_vendor_generation_instructions_and_their_cap(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    path, line = tmp_path / "cpuinfo", "flags\t\t: fpu avx2 avx512_bf16 amx_bf16 sse2 avx_vnni\n"
    path.write_text(f"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel name\t: EPYC\n{line}" * 2)
    assert read_processor(path) == "AuthenticAMD 26 amx_bf16 avx2 avx512_bf16 avx_vnni"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert read_processor(path).endswith(" avx_vnni ONEDNN_MAX_CPU_ISA=AVX2")
    path.write_text("processor\t: 0\nFeatures\t: fp asimd bf16 i8mm crc32\nCPU implementer\t: 0x41\n")
    assert read_processor(path).startswith("0x41 asimd bf16 i8mm") and read_processor(tmp_path / "none") == ""
    monkeypatch.setattr("handlers.precision.samples.read_processor", lambda: "")
    assert name_place().startswith(f"{platform.node()}; openvino ")  # no other machine's proofs count
