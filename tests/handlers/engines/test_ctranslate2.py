"""CTranslate2: each text has its own tokens, limit and end, in any order, on any streams."""

import _ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers

from deploy.archives.tasks.translation import convert
from handlers.checkpoints import load_tokenizer
from handlers.engines import Divisible, Outputs
from handlers.engines.ctranslate2 import CUBLAS, CTranslate2Engine, _load_cublas, compute_type
from handlers.engines.decoding import Decoding
from handlers.errors import InvalidConfig, OutOfTime
from handlers.text.config import TranslationConfig
from handlers.text.translators import read_generation
from tests import tiny_seq2seq
from tests.handlers.serving import Patch, Temp
from tests.tables import table
from tests.tiny_seq2seq import SENTENCES

pytestmark = pytest.mark.builds
Make = Callable[..., CTranslate2Engine]
Inputs = dict[str, Any]
CPU, PAD = torch.device("cpu"), 109
FEW = {"max_new_tokens": 12}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: Temp) -> Path:
    return tiny_seq2seq.marian(tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def make(checkpoint: Path, tmp_path_factory: Temp) -> Make:
    folder = tmp_path_factory.mktemp("converted") / "ctranslate2"
    assert convert(checkpoint, TranslationConfig(), folder, None) is None
    generation, _ = read_generation(checkpoint, trust_remote_code=False)

    def make(**settings: Any) -> CTranslate2Engine:
        settings = {"pad_id": PAD, "device": CPU, "precision": "fp32", "threads": 2, **settings}
        return CTranslate2Engine(folder, generation, **settings)

    return make


@pytest.fixture(scope="module")
def inputs(checkpoint: Path) -> Inputs:
    encoded = load_tokenizer(checkpoint)(SENTENCES, padding=True, return_tensors="np")
    return {name: encoded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


def rows(outputs: Any) -> list[list[int]]:
    return [[number for number in row.tolist() if number != PAD] for row in outputs["sequences"]]


@pytest.mark.parametrize("streams", [1, 2])
def test_texts_in_any_order_and_on_any_streams_get_their_own(make: Make, inputs: Inputs, streams: int) -> None:
    alone = make(threads=1)
    each = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(len(SENTENCES))]
    expected = [rows(alone.run(one, FEW))[0] for one in each]
    assert len(set(map(tuple, expected))) > len(SENTENCES) // 2
    engine = make(streams=streams)
    assert isinstance(engine, Divisible)
    order = np.random.default_rng(streams).permutation(len(SENTENCES))
    shuffled = {name: array[order] for name, array in inputs.items()}
    # Each is reported once, as it ends, with its outputs.
    reported: list[tuple[int, Outputs]] = []
    assert rows(engine.run(shuffled, FEW, lambda *ended: reported.append(ended))) == [expected[i] for i in order]
    found = sorted((index, rows(outputs)) for index, outputs in reported)
    assert found == [(index, [expected[i]]) for index, i in enumerate(order)]
    divided: Any = engine.divide(streams)
    assert divided.whole is engine
    assert len(divided.streams) == (streams if streams > 1 else 0)
    other: Any = engine.divide(3 - streams)
    assert other.whole is not engine
    for part in (*divided.streams, other.whole, *other.streams):
        assert rows(cast("Any", part).run(inputs, FEW)) == expected
    assert make(streams=4, threads=3).stream_counts == [3, 1, 2]


def test_limit_of_one_item_is_nothing_to_the_others(make: Make, inputs: Inputs) -> None:
    engine = make()
    whole = rows(engine.run(inputs, {"max_new_tokens": 16}))
    assert min(map(len, whole)) > 1 and max(map(len, whole)) > 2
    limits = [2 if index % 2 else 16 for index in range(len(SENTENCES))]
    # A forced end counts as a token.
    expected = [row[: limit - 1] for row, limit in zip(whole, limits, strict=True)]
    assert rows(engine.run(inputs, {"max_new_tokens": limits})) == expected


def test_run_that_fails_or_is_past_its_time_ends_and_the_next_one_answers(make: Make, inputs: Inputs) -> None:
    def fails(index: int, outputs: Outputs) -> None:
        raise LookupError(index)

    engine = make(streams=2)
    with pytest.raises(LookupError):
        engine.run(inputs, FEW, fails)
    engine._longest_run_s = 0.0
    for beams in (1, 4):
        with pytest.raises(OutOfTime):
            engine.run(inputs, {"num_beams": beams, "max_new_tokens": 100})
    engine._longest_run_s = 60.0
    assert len(engine.run(inputs, FEW)["sequences"]) == len(SENTENCES)


def test_scores_in_int8_follow_those_of_fp32(checkpoint: Path, make: Make, inputs: Inputs, tmp_path: Path) -> None:
    assert convert(checkpoint, TranslationConfig(), tmp_path / "ctranslate2", "int8") is None
    generation, _ = read_generation(checkpoint, trust_remote_code=False)
    int8 = CTranslate2Engine(tmp_path / "ctranslate2", generation, pad_id=PAD, device=CPU, threads=1)
    assert int8.description == "ctranslate2 cpu int8"
    texts = [[int8._vocabulary[number] for number in row if number != PAD] for row in inputs["input_ids"].tolist()]
    scored = (engine._translator.score_batch(texts, texts) for engine in (make(), int8))
    scores = [np.concatenate([each.log_probs for each in found]) for found in scored]
    # Random weights: 0.999 with VNNI, 0.77 where AVX2 alone adds products up in 16 bits, and 0.0 of another model.
    assert np.corrcoef(np.stack(scores))[0, 1] > 0.5


def test_model_or_precision_that_is_not_there_is_rejected(tmp_path: Path) -> None:
    assert (compute_type("cpu", "auto"), compute_type("cpu", "fp32")) == ("int8", "float32")
    with pytest.raises(InvalidConfig, match=r"no int4 in CTranslate2; use one of .*fp32.*int8"):
        compute_type("cpu", "int4")
    with pytest.raises(InvalidConfig, match="not a converted model"):
        CTranslate2Engine(tmp_path, transformers.GenerationConfig(), pad_id=0, device=CPU)


@table(
    ({"bad_words_ids": [[2], [0, 1]]}, {"suppress_sequences": [["c"], ["a", "b"]]}),
    ({"bad_words_ids": [[9]]}, {"suppress_sequences": None}),
    ({"suppress_tokens": [1]}, {"suppress_sequences": [["b"]]}),
    *(({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}), ({"min_length": 4}, {"min_decoding_length": 3})),
    ({"min_new_tokens": 50}, {"min_decoding_length": 20}),
    *(({"length_penalty": each}, {"length_penalty": each}) for each in (0.6, 0.0)),
)
def test_decoding_follows_the_models_own_settings(said: dict[str, Any], expected: dict[str, Any]) -> None:
    decoding = Decoding.read(transformers.GenerationConfig(**said), ["a", "b", "c"], has_start=True)
    options = decoding.options({"num_beams": 4}, 20)
    assert {name: options[name] for name in expected} == expected


def test_gpu_without_cuda_12_is_rejected_in_one_line(make: Make, tmp_path: Path, monkeypatch: Patch) -> None:
    """PyTorch's libraries are those of CUDA 13; CTranslate2 would find out at its first product."""
    monkeypatch.setattr("handlers.engines.ctranslate2.device_name", lambda _: "cuda")
    with pytest.raises(InvalidConfig, match=r"needs libcublas\.so\.12 on a GPU.*not found; build .* --engine torch"):
        make(device=torch.device("cuda", 0))
    (tmp_path / "nvidia/cublas/lib").mkdir(parents=True)
    shutil.copy(_ctypes.__file__, tmp_path / "nvidia/cublas/lib" / CUBLAS)
    monkeypatch.syspath_prepend(tmp_path)
    _load_cublas()
