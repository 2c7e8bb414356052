"""What a model says of its tensors and options."""

import json
from dataclasses import dataclass
from typing import Any

from handlers.config import HandlerConfig
from handlers.protocol.metadata import Metadata, TensorMetadata, asks_for_metadata, names_given, options_metadata
from handlers.text.config import LanguageIdConfig, LanguageIdOptions
from handlers.text.translation_config import TranslationConfig, TranslationOptions


def test_metadata_is_asked_for_by_a_header_of_any_case_and_by_no_field_of_a_form() -> None:
    assert asks_for_metadata({"X-MODEL-Metadata": "", "host": "localhost"})
    assert not asks_for_metadata({"X-Model-Metadata": {"content-type": ""}, "host": "X-Model-Metadata"})


def test_dimension_of_rows_is_named_where_it_is_not_the_first() -> None:
    inputs = [TensorMetadata("a", "FP32", (-1, 2)), TensorMetadata("b", "FP32", (2, -1), batch_dim=1)]
    words: dict[str, Any] = dict.fromkeys(("name", "version", "platform", "task", "mode"), "m")
    metadata = Metadata(**words, inputs=inputs, outputs=[], max_batch_size=4, max_instances=4, options={}, accepts=[])
    assert json.loads(metadata.pack([]).body)["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "b", "datatype": "FP32", "shape": [2, -1], "batch_dim": 1},
    ]


def test_names_of_tensors_are_the_owners_or_else_the_tasks() -> None:
    swapped = {"label": "score", "score": "label"}
    assert names_given("outputs", ["label", "score"], swapped, []) == swapped
    names = names_given("outputs", ["label", "score"], {"score": "probability"}, ["error"])
    assert names == {"label": "label", "score": "probability"}


def test_options_have_their_type_limits_description_and_the_archives_default() -> None:
    options = options_metadata(LanguageIdOptions, LanguageIdConfig(top_k=3))
    assert options["top_k"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10_000,
        "default": 3,
        "description": "the most labels of its answer.",
    }
    # One description for several attributes of the settings.
    assert options_metadata(TranslationOptions, TranslationConfig(tgt_lang="de"))["tgt_lang"] == {
        "type": "string",
        "default": "de",
        "description": "the languages, as the model's own codes; `src_lang: auto` has it identified.",
    }


def test_options_that_json_has_no_words_for_are_named() -> None:
    @dataclass
    class Odd:
        callback: Any = None
        kind: type[BaseException] = ValueError

    options = options_metadata(Odd, HandlerConfig())
    assert {name: option["type"] for name, option in options.items()} == {"callback": "any", "kind": "any"}
