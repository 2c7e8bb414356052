"""Texts on CUDA graphs, with the CPU in place of a GPU, are answered as transformers and the eager module do."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from handlers.engines.ladder import ROWS
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text
from tests.handlers.cpu_graphs import use_cpu_graphs, use_graphs
from tests.handlers.serving import serve, started
from tests.handlers.tasks.test_encoders import ALL, close, expected, start
from tests.tiny_models import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore:Tokenizer does not support real words:UserWarning")


@pytest.mark.parametrize("name", ["mean", "first, normalized", "softmax", "words", "bytes"])
def test_texts_of_mixed_lengths_are_answered_as_transformers_answers_each(
    tiny_archive: Callable[..., Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, settings = use_cpu_graphs(monkeypatch), ALL if name == "softmax" else {}
    options = {"aggregation_strategy": "simple"} if name in ("words", "bytes") else settings
    handler = start(tiny_archive, name, max_batch_tokens=512, **settings)
    assert (handler.graph_lengths, handler.overhead.sizes) == ([16, 32, 48, 64, 96, 128, 192], (1, 2, 4, 8, 16, 32))
    recorder.replays = 0
    for text, answer in zip(TEXTS, serve(handler, list(TEXTS)), strict=True):
        assert (answer.status, answer.body) == (200, close(expected(handler, name, text, **options)))
    assert recorder.replays


@pytest.mark.parametrize(("device", "shapes"), [("cpu", 20), pytest.param("cuda", 1000, marks=pytest.mark.gpu)])
def test_texts_of_any_shape_in_two_threads_are_those_of_the_eager_module(
    device: str, shapes: int, tiny_archive: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_archive("bert", "sentence_embedding", engine="torch")
    use_graphs(monkeypatch, device)
    eager, recorded = (
        started(SentenceEmbeddingHandler(), folder, {"cuda_graphs": way, "precision": "fp32", "max_length": 48})
        for way in ("off", "auto")
    )
    assert isinstance(recorded, TextHandler)
    assert (eager.overhead.sizes, recorded.overhead.sizes) == ((), ROWS)

    def compare(number: int) -> float:
        chance = np.random.default_rng(number)
        lengths = chance.integers(1, int(chance.integers(2, 49)), int(chance.integers(1, 65)))
        rows = [Text("", None, chance.integers(5, 60, length).tolist(), [0] * length) for length in lengths]
        found, wanted = (each.engine.run(recorded.stack(rows))["embeddings"] for each in (recorded, eager))
        return float(np.abs(found - wanted).max())

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(compare, range(shapes))) < 1e-4
