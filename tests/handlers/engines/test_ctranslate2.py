import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from deploy.translation import converted
from handlers.engines import Divisible, Progress, Progressive
from handlers.engines.ctranslate2 import CTranslate2Engine, compute_type
from handlers.engines.decoding import Decoding, foreign_settings
from handlers.engines.seq2seq import load_tokenizer, read_generation
from handlers.errors import InvalidConfig, OutOfTime
from handlers.text.translation_config import TranslationConfig
from tests import tiny_seq2seq
from tests.tiny_seq2seq import SENTENCES

Make = Callable[..., CTranslate2Engine]
CPU = torch.device("cpu")
FEW = {"max_new_tokens": 12}


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    source = tiny_seq2seq.marian(tmp_path_factory.mktemp("marian"))
    folder = tmp_path_factory.mktemp("converted") / "ctranslate2"
    assert converted("tiny", source, TranslationConfig(precision="fp32"), folder)
    generation, _ = read_generation(source)

    def make(**settings: Any) -> CTranslate2Engine:
        return CTranslate2Engine(
            folder, generation, **{"pad_id": 109, "device": CPU, "precision": "fp32", "threads": 2, **settings}
        )

    return make


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tokenizer = load_tokenizer(tiny_seq2seq.marian(tmp_path_factory.mktemp("tokenizer")))
    encoded = tokenizer(SENTENCES, padding=True, return_tensors="np")
    return {name: encoded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}


def rows(sequences: Any) -> list[list[int]]:
    """Each answer without its padding."""
    return [[number for number in row.tolist() if number != 109] for row in sequences]


@pytest.mark.parametrize("streams", [1, 2])
def test_engine_in_any_order_and_on_any_streams_gives_each_its_own(
    make: Make, inputs: dict[str, Any], streams: int
) -> None:
    alone = make(threads=1)
    each = [{name: array[i : i + 1] for name, array in inputs.items()} for i in range(len(SENTENCES))]
    expected = [rows(alone.run(one, FEW)["sequences"])[0] for one in each]
    engine = make(streams=streams)
    order = np.random.default_rng(streams).permutation(len(SENTENCES))
    shuffled = {name: array[order] for name, array in inputs.items()}
    assert rows(engine.run(shuffled, FEW)["sequences"]) == [expected[index] for index in order]
    divided: Any = engine.divide(streams)
    assert divided.whole is engine
    assert len(divided.streams) == (streams if streams > 1 else 0)
    assert all(rows(part.run(inputs, FEW)["sequences"]) == expected for part in divided.streams)
    # Another number of streams is an engine of its own, which gives the same.
    other: Any = engine.divide(2 if streams == 1 else 1)
    assert other.whole is not engine
    assert all(rows(part.run(inputs, FEW)["sequences"]) == expected for part in (other.whole, *other.streams))


def test_engine_is_divisible_and_progressive_and_its_streams_progressive(make: Make) -> None:
    engine = make(streams=2)
    assert isinstance(engine, Divisible) and isinstance(engine, Progressive)
    assert all(isinstance(part, Progressive) for part in engine.divide(2).streams)
    assert make(streams=4, threads=3).stream_counts == [3, 1, 2]


@pytest.mark.parametrize("streams", [1, 2])
def test_progress_tells_the_tokens_of_the_outputs_and_each_end_once(
    make: Make, inputs: dict[str, Any], streams: int
) -> None:
    told: dict[int, list[int]] = {index: [] for index in range(len(SENTENCES))}
    ended: list[int] = []

    def listen(progress: Progress) -> bool:
        assert progress.index not in ended
        told[progress.index] += progress.tokens
        ended.extend([progress.index] * progress.is_last)
        return False

    limits = [3 + index for index in range(len(SENTENCES))]
    outputs = make(streams=streams).run_progressively(inputs, listen, {"max_new_tokens": limits})
    assert [told[index] for index in sorted(told)] == rows(outputs["sequences"])
    assert sorted(ended) == list(range(len(SENTENCES)))
    if streams == 1:
        assert ended[0] == 0


def test_progress_that_says_stop_ends_that_item_alone(make: Make, inputs: dict[str, Any]) -> None:
    engine = make()
    whole = rows(engine.run(inputs, {"max_new_tokens": 10})["sequences"])
    stopped = engine.run_progressively(inputs, lambda progress: progress.index == 1, {"max_new_tokens": 10})
    assert rows(stopped["sequences"]) == [row[:1] if index == 1 else row for index, row in enumerate(whole)]


def test_progress_that_fails_ends_the_run_with_its_error(make: Make, inputs: dict[str, Any]) -> None:
    def fails(progress: Progress) -> bool:
        raise LookupError(progress.index)

    engine = make(streams=2)
    with pytest.raises(LookupError):
        engine.run_progressively(inputs, fails, FEW)
    assert len(engine.run(inputs, FEW)["sequences"]) == len(SENTENCES)


def test_limit_of_one_item_is_nothing_to_the_others(make: Make, inputs: dict[str, Any]) -> None:
    engine = make()
    whole = rows(engine.run(inputs, {"max_new_tokens": 40})["sequences"])
    limits = [2 if index % 2 else 40 for index in range(len(SENTENCES))]
    # A forced end counts as a token.
    expected = [row[: limit - 1] for row, limit in zip(whole, limits, strict=True)]
    assert rows(engine.run(inputs, {"max_new_tokens": limits})["sequences"]) == expected
    assert max(map(len, whole)) > 2


@pytest.mark.parametrize("beams", [1, 4])
def test_run_past_its_time_ends_and_the_next_one_answers(make: Make, inputs: dict[str, Any], beams: int) -> None:
    engine = make(longest_run_s=0.0)
    started_s = time.perf_counter()
    with pytest.raises(OutOfTime):
        engine.run(inputs, {"num_beams": beams, "max_new_tokens": 100})
    if beams == 1:
        # A search with beams cannot be ended: it goes on beside what comes next.
        assert time.perf_counter() - started_s < 30
        engine._longest_run_s = 60.0
        assert len(engine.run(inputs, FEW)["sequences"]) == len(SENTENCES)


def test_precision_the_processor_lacks_is_refused_with_those_it_has() -> None:
    assert compute_type("cpu", "auto") == "int8"
    assert compute_type("cpu", "fp32") == "float32"
    with pytest.raises(InvalidConfig, match=r"no int4 in CTranslate2; it has .*fp32.*int8"):
        compute_type("cpu", "int4")


def test_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no converted model"):
        CTranslate2Engine(tmp_path, transformers.GenerationConfig(), pad_id=0, device=CPU)


def generation(**settings: Any) -> Any:
    return transformers.GenerationConfig(**settings)


def settings() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    yield {"bad_words_ids": [[2], [0, 1]]}, {"suppress_sequences": [["c"], ["a", "b"]]}
    # What conversion left out cannot be said.
    yield {"bad_words_ids": [[9]]}, {"suppress_sequences": None}
    yield {"suppress_tokens": [1]}, {"suppress_sequences": [["b"]]}
    yield {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2}, {"no_repeat_ngram_size": 3, "repetition_penalty": 1.2}
    yield {"min_length": 4}, {"min_decoding_length": 3}
    yield {"min_new_tokens": 50}, {"min_decoding_length": 20}
    yield {"length_penalty": 0.6}, {"length_penalty": 0.6}


@pytest.mark.parametrize(("said", "expected"), list(settings()))
def test_decoding_follows_the_models_own_settings(said: dict[str, Any], expected: dict[str, Any]) -> None:
    decoding = Decoding.read(generation(**said), ["a", "b", "c"], has_start=True)
    options = decoding.options({"num_beams": 4}, 20)
    assert {name: options[name] for name in expected} == expected


def test_decoding_of_a_request_comes_before_the_models_own() -> None:
    decoding = Decoding.read(generation(no_repeat_ngram_size=3), ["a"], has_start=True)
    assert decoding.options({"no_repeat_ngram_size": 0}, 9)["no_repeat_ngram_size"] == 0
    patience = [
        decoding.options({"num_beams": beams, "early_stopping": is_early}, 9)["patience"]
        for beams, is_early in ((1, False), (4, True), (4, False))
    ]
    assert patience == [1.0, 1.0, 2.0]


def test_decoding_begins_with_the_start_that_the_model_lacks_and_the_language() -> None:
    said = generation(decoder_start_token_id=2, forced_bos_token_id=1)
    assert Decoding.read(said, ["a", "b", "c"], has_start=False).prefix({}) == ["c", 1]
    assert Decoding.read(said, ["a", "b", "c"], has_start=True).prefix({"forced_bos_token_id": 0}) == [0]


def test_foreign_settings_are_named() -> None:
    assert foreign_settings(generation()) == []
    assert foreign_settings(generation(encoder_no_repeat_ngram_size=3)) == ["encoder_no_repeat_ngram_size"]
