"""Embeddings, classification and tokens: a text in any company is answered as transformers answers it alone."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import transformers

from handlers.engines import ROWS
from handlers.pipeline.task import inputs_of
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text
from handlers.warm_up import measure_change
from tests.handlers.cpu_graphs import use_cpu_graphs, use_graphs
from tests.handlers.serving import CANARY, Bad, Log, Made, assert_own_answers, serve, started
from tests.oracle import assert_order
from tests.tables import table
from tests.tiny_models import LIMIT, TEXTS

Handler = TextHandler[Any, Any]


def pooled(**pooling: Any) -> dict[str, Any]:
    """Files by which an encoder pools so and normalises, as sentence-transformers writes them."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": ""}
    types = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]
    modules = [{"idx": index, "name": str(index), **each} for index, each in enumerate(types)]
    return {"modules.json": modules, "1_Pooling/config.json": {"word_embedding_dimension": 32, **pooling}}


def classes(kind: str, *labels: str, **config: Any) -> dict[str, Any]:
    return {"task": "text_classification", "kind": kind, "labels": labels, **config}


FIRST = pooled(pooling_mode_cls_token=True)
# Model -> its task and kind, and what its files say that decides an answer.
MODELS: dict[str, dict[str, Any]] = {
    "mean": {"task": "sentence_embedding", "kind": "bert"},
    "first, normalized": {"task": "sentence_embedding", "kind": "distilbert", "files": FIRST},
    "softmax": classes("bert", "NEGATIVE", "NEUTRAL", "POSITIVE"),
    "sigmoid": classes("roberta", *"abcdef", problem_type="multi_label_classification"),
    "one label": classes("bert", "relevance"),
    "regression": classes("distilbert", "stars", problem_type="regression"),
    # The one has tokens that say whether they continue a word, the other leaves it to be guessed, with a warning.
    "words": {"task": "token_classification", "kind": "bert"},
    "bytes": {"task": "token_classification", "kind": "roberta"},
}
LONG = "the river rose " * LIMIT
pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")


def start(tiny_archive: Made, model: Any, engine: str = "torch", **settings: Any) -> Handler:
    model = MODELS[model] if isinstance(model, str) else model
    settings = {"precision": "fp32", "threads": 1, "engine": engine, **settings}
    name = model["task"].title().replace("_", "") + "Handler"
    handler: Handler = getattr(import_module(f"handlers.tasks.{model['task']}"), name)()
    return started(handler, tiny_archive(**model, engine=engine), settings)


@cache
def pipeline(task: str, checkpoint: str) -> Any:
    return transformers.pipeline(task, model=checkpoint, dtype="float32", device="cpu")


def expected(handler: Handler, name: str, text: str, **options: Any) -> Any:
    checkpoint, task = str(handler.archive.checkpoint_dir), MODELS[name]["task"]
    if task != "sentence_embedding":
        return pipeline(task.replace("_", "-"), checkpoint)(text, **options)
    states = np.array(pipeline("feature-extraction", checkpoint)(text)[0])
    return (states.mean(0) if name == "mean" else states[0] / np.linalg.norm(states[0])).tolist()


def close(value: Any, tolerance: float = 1e-4) -> Any:
    """The same but for the last digits of its scores: another engine or padding adds up in another order."""
    if isinstance(value, float | np.floating):
        return pytest.approx(float(value), abs=tolerance)
    if isinstance(value, list):
        return [close(each, tolerance) for each in value]
    return {key: close(each, tolerance) for key, each in value.items()} if isinstance(value, dict) else value


def of_text(text: Any, **options: Any) -> dict[str, Any]:
    return {"body": {"text": text, **options}}


BAD: list[Bad] = [
    ("qzqz " + "x" * 50_001, 413, "TextTooLong", "max_characters is 50000. Send truncation: true to cut it."),
    (of_text("qzqz", truncate_prompt_tokens=193), 400, "InvalidOption", "truncate_prompt_tokens: 193; at most 192"),
    (of_text("qzqz", truncate_prompt_tokens=2), 400, "InvalidOption", "truncation: 2 tokens have no room for text"),
    *((of_text(""), 400, "EmptyInput", "text: empty"), (b"qzqz\xff", 400, "InvalidText", "not valid UTF-8 at byte 4")),
    ("a\0qzqz", 400, "InvalidText", "null character at position 1"),
    (of_text("\ud800 qzqz"), 400, "InvalidText", "lone surrogate at position 0"),
    (of_text("qzqz", size="qzqz"), 400, "InvalidOption", r"size: Unexpected.*Known options: "),
    (of_text(["qzqz"]), 400, "InvalidBody", "text: must be a string"),
    ({"body": {"query": "qzqz"}}, 400, "InvalidBody", '"text"'),
]
BAD_OPTIONS: dict[str, list[Bad]] = {
    "softmax": [
        (f"qzqz {LONG}", 413, "TextTooLong", r"text: \d+ tokens; max_length is 192\. Send truncation: true"),
        (" \n\t\u3000", 400, "EmptyInput", "text: empty"),
        (of_text("qzqz", top_k=0), 400, "InvalidOption", "top_k.*greater than or equal to 1"),
        (of_text("qzqz", top_k="qzqz"), 400, "InvalidOption", "top_k.*integer"),
    ],
    "words": [(of_text("qzqz", aggregation="qzqz"), 400, "InvalidOption", "'none', 'simple', 'first', 'average' or")],
}
ALL: dict[str, Any] = {"top_k": None}
SIMPLE = {"aggregation_strategy": "simple"}
BUILT, OPENVINO = pytest.mark.builds, {"engine": "openvino"}
GRAPHS = {"cuda_graphs": "auto", "max_batch_tokens": 512}


@table(
    pytest.param("mean", OPENVINO, {}, marks=BUILT),
    *(("mean", {}, {}), ("mean", {"padding": "max_length", "max_batch_items": 3}, {})),
    pytest.param("mean", {**OPENVINO, "precision": "bf16"}, {}, marks=[pytest.mark.bf16, BUILT]),
    ("first, normalized", {}, {}),
    *((name, ALL, ALL) for name in ("softmax", "sigmoid", "one label", "regression")),
    pytest.param("softmax", {**ALL, **OPENVINO}, ALL, marks=BUILT),
    ("one label", {"function_to_apply": "none"}, {"function_to_apply": "none", "top_k": 1}),
    pytest.param("words", OPENVINO, SIMPLE, marks=BUILT),
    ("words", {"ignore_labels": ["O", "PER"], "aggregation": "none"}, {"ignore_labels": ["O", "PER"]}),
    *((name, GRAPHS, {}) for name in ("mean", "first, normalized")),
    ("softmax", {**ALL, **GRAPHS}, ALL),
    *((name, GRAPHS, SIMPLE) for name in ("words", "bytes")),
)
def test_any_batch_is_answered_as_by_transformers(
    name: str, settings: Any, options: Any, tiny_archive: Made, caplog: Log
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # With the CPU in place of a GPU.
        recorder = use_cpu_graphs(patch) if "cuda_graphs" in settings else None
        handler = start(tiny_archive, name, **settings)
    if recorder:
        lengths = (16, 32, 48, 64, 96, 128, 192)
        overhead = inputs_of(handler).overhead
        assert (overhead.lengths, overhead.sizes) == (lengths, (1, 2, 4, 8, 16, 32))
        recorder.replays = 0
    # bf16 rounds each factor by 2**-9; a state is about one.
    tolerance = 5e-2 if "precision" in settings else 1e-4
    good: list[tuple[Any, Any]] = [(text, expected(handler, name, text, **options)) for text in TEXTS]
    if options is ALL:
        for _, wanted in good:
            assert_order([each["score"] for each in wanted], tolerance)
        good.append((of_text(TEXTS[0], top_k=1), expected(handler, name, TEXTS[0], top_k=1)))
    good.append(("qzqz the mayor", expected(handler, name, "qzqz the mayor", **options)))
    bad = BAD + BAD_OPTIONS.get(name, [])
    assert_own_answers(handler, good, bad, lambda found, wanted: found == close(wanted, tolerance))
    assert CANARY not in caplog.text and (recorder or "CUDA graphs" not in caplog.text)
    assert recorder is None or recorder.replays


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_every_aggregation_of_a_mixed_batch_equals_the_pipeline_text_by_text(tiny_archive: Made, name: str) -> None:
    handler = start(tiny_archive, name)
    pairs = [(text, way) for way in ("none", "simple", "first", "average", "max") for text in TEXTS]
    labels = set()
    rows = [{"body": {"text": text, "aggregation": way}} for text, way in pairs]
    for (text, way), answer in zip(pairs, serve(handler, rows), strict=True):
        assert answer.body == close(expected(handler, name, text, aggregation_strategy=way))
        labels |= {entity.get("entity_group") for entity in answer.body}
    assert {"PER", "LOC", "MISC"} <= labels


CUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"truncation": True}, {"max_length": LIMIT}), ({"truncate_prompt_tokens": 9}, {"max_length": 9})),
    ({"truncation": True, "truncate_prompt_tokens": -1, "truncation_side": "left"}, {"max_length": LIMIT}),
]


@pytest.mark.parametrize("name", ["mean", "softmax", "bytes"])
def test_long_text_is_cut_as_its_client_asks(tiny_archive: Made, name: str) -> None:
    handler = start(tiny_archive, name)
    checkpoint, task = str(handler.archive.checkpoint_dir), MODELS[name]["task"].replace("_", "-")
    # One more than its limit of characters: a client that allows cutting gets an answer, too.
    long = f"Anna Berg {LONG} mayor. " + "x" * (50_001 - len(LONG) - 18)
    rows = [of_text(long, **asked) for asked, _ in CUTS]
    for (asked, cut), answer in zip(CUTS, serve(handler, rows), strict=True):
        if name == "bytes" and "truncation_side" in asked:
            assert (answer.status, answer.body["type"]) == (413, "TextTooLong")  # places count from the start
            continue
        oracle = pipeline("feature-extraction" if name == "mean" else task, checkpoint)
        oracle.tokenizer.truncation_side = asked.get("truncation_side", "right")
        text = long[:50_000] if oracle.tokenizer.truncation_side == "right" else long[-50_000:]
        if name == "bytes":
            ids = oracle.tokenizer(text, truncation=True, return_offsets_mapping=True, **cut)
            wanted = oracle(text[: ids["offset_mapping"][-2][1]], aggregation_strategy="simple")
        elif name == "mean":
            wanted = np.array(oracle(text, tokenize_kwargs={"truncation": True, **cut})[0]).mean(0).tolist()
        else:
            wanted = oracle(text, truncation=True, **cut)
        oracle.tokenizer.truncation_side = "right"
        assert (answer.status, answer.body) == (200, close(wanted))


@pytest.mark.parametrize("name", ["words", "bytes"])
def test_entities_of_long_texts_are_those_of_the_pipeline_with_a_stride(tiny_archive: Made, name: str) -> None:
    # The pipeline's first token of a window keeps its space in the place; with the last text, one such token wins.
    handler, text = start(tiny_archive, name, doc_stride=40), " ".join(TEXTS[:-1]) * 2
    for way in ("simple", "first", "average", "max"):
        (answer,) = serve(handler, [of_text(text, aggregation=way)])
        assert answer.body == close(expected(handler, name, text, stride=40, aggregation_strategy=way))
    alone, together = (serve(handler, rows)[0] for rows in ([of_text(text)], [of_text(text), *TEXTS, text]))
    assert together.body == close(alone.body, 1e-5)
    (tokens,) = serve(handler, [of_text(text, aggregation="none")])
    assert all(first["end"] <= then["start"] for first, then in pairwise(tokens.body))
    (rejected,) = serve(start(tiny_archive, name, max_windows=2), [text])
    assert (rejected.status, rejected.body["message"][-33:]) == (413, "Send truncation: true to cut it.".rjust(33))


def test_bodies_of_hugging_faces_clients_are_answered_as_pipelines_answer(tiny_archive: Made) -> None:
    asked = {"parameters": {"aggregation_strategy": "first", "truncate": True}, "options": {"wait_for_model": True}}
    handler = start(tiny_archive, "words")
    one, many = serve(handler, [{"body": {"inputs": TEXTS[0], **asked}}, {"body": {"inputs": [*TEXTS], **asked}}])
    wanted = [expected(handler, "words", text, aggregation_strategy="first") for text in TEXTS]
    assert (one.body, many.body) == (close(wanted[0]), close(wanted))
    bad = [
        ({"inputs": ["x", ""]}, "inputs[1]: text: empty"),
        ({"inputs": "x", "parameters": {"stride": 192}}, "doc_stride: 192; must be less"),
        ({"inputs": "x", "parameters": [1]}, '"parameters" must be'),
    ]
    for answer, (_, words) in zip(serve(handler, [{"body": body} for body, _ in bad]), bad, strict=True):
        assert answer.status == 400
        assert answer.body.get("error", answer.body.get("message")).startswith(words)
    text, more = " ".join(TEXTS) * 2, {"stride": 40, "ignore_labels": ["O", "PER"]}
    (answer,) = serve(handler, [{"body": {"inputs": text, "parameters": {"aggregation_strategy": "first", **more}}}])
    assert answer.body == close(expected(handler, "words", text, aggregation_strategy="first", **more))


def test_labels_of_one_text_are_nested_for_hugging_faces_clients(tiny_archive: Made) -> None:
    handler, text = start(tiny_archive, "softmax"), TEXTS[0]
    asked: list[dict[str, Any]] = [
        *({"top_k": 3, "function_to_apply": name} for name in ("sigmoid", "none", "softmax")),
        {"top_k": 1},
    ]
    rows = [{"body": {"inputs": text, "parameters": each}} for each in asked]
    for answer, each in zip(serve(handler, rows), asked, strict=True):
        assert answer.body == close([expected(handler, "softmax", text, **each)])
    # A list is as long as its texts.
    (listed,) = serve(handler, [{"body": {"inputs": [text]}}])
    assert listed.body == close([expected(handler, "softmax", text, top_k=1)])


def test_vector_is_scaled_to_unit_length_if_its_client_asks(tiny_archive: Made) -> None:
    handler, unit = start(tiny_archive, "mean"), start(tiny_archive, "first, normalized")
    rows = [{"body": {"inputs": TEXTS[0], "normalize": each}} for each in (True, False)]
    scaled, plain = (np.array(answer.body) for answer in serve(handler, rows))
    np.testing.assert_allclose(plain, expected(handler, "mean", TEXTS[0]), atol=1e-4)
    np.testing.assert_allclose(scaled, plain / np.linalg.norm(plain), atol=1e-6)
    assert [answer.status for answer in serve(unit, rows)] == [200, 400]


def test_change_of_a_precision_is_measured_beside_fp32(tiny_archive: Made) -> None:
    # A build cannot compare the precisions of a GPU, so a worker on one logs this change.
    halved, exact = (start(tiny_archive, "mean", precision=each) for each in ("bf16", "fp32"))
    assert 1e-4 < measure_change(halved) < 0.05
    assert measure_change(exact) == 0


@pytest.mark.parametrize(("device", "shapes"), [("cpu", 20), pytest.param("cuda", 1000, marks=pytest.mark.gpu)])
def test_graphs_in_two_threads_equal_the_module(device: str, shapes: int, tiny_archive: Any, monkeypatch: Any) -> None:
    use_graphs(monkeypatch, device)
    eager, recorded = (start(tiny_archive, "mean", cuda_graphs=way, max_length=48) for way in ("off", "auto"))
    assert (eager.inputs.overhead.sizes, recorded.inputs.overhead.sizes) == ((), ROWS)

    def compare(number: int) -> float:
        chance = np.random.default_rng(number)
        lengths = chance.integers(1, int(chance.integers(2, 49)), int(chance.integers(1, 65)))
        rows = [Text("", None, chance.integers(5, 60, length).tolist(), [0] * length) for length in lengths]
        found, wanted = (each.engine.run(recorded.stack(rows))["embeddings"] for each in (recorded, eager))
        return float(np.abs(found - wanted).max())

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(compare, range(shapes))) < 1e-4
