"""Settings and options, of a task's own class or a user's: plain, a dataclass, or both."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import pytest
import ts
from pydantic import Field

from handlers.config import FRONTEND_NAMES, HandlerConfig, NoOptions, check_names, parse, parse_options
from handlers.continuous.mode import resolve_mode
from handlers.errors import InvalidConfig, InvalidOption
from handlers.pipeline.declared import complete
from handlers.tensor_models.config import TensorsConfig
from handlers.text.config import LanguageIdOptions, TranslationConfig
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions
from tests.tables import table

LEVELS = {"priority_levels": 3, "default_priority": 4}
MANY = {"archh": 1, "top_k": 0, "threads": -1, "scheduling": {"mod": 1, "queue_timeout_ms": -1}}


@table(
    *(({1: 2}, ["mapping"]), ({"arch": "a", "max_batch_items": True}, ["max_batch_items", "integer"])),
    ({"arch": "a", "engine": "tensorrt"}, ["engine", "openvino"]),
    ({"arch": "a", "std": [1, 1, 0]}, ["std.2: Input should be greater than 0"]),
    ({"crop_size": 300, "std": [1, 1, 1]}, ["crop_size, std: only with arch"]),
    ({"arch": "a", "scheduling": "adaptive"}, ["scheduling: must be a mapping of names"]),
    ({"arch": "a", "scheduling": {"latency_target_ms": float("inf")}}, ["latency_target_ms"]),
    ({"arch": "a", "scheduling": {"max_latency_ms": 5}}, ["max_latency_ms: unknown name (now latency_target_ms)"]),
    ({"arch": "a", "scheduling": LEVELS}, ["default_priority 4", "priority_levels 3"]),
    (MANY, ["archh", "top_k", "threads", "scheduling", "mod:", "queue_timeout_ms"]),
)
def test_config_that_is_wrong_is_one_error_that_lists_every_problem(values: Any, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse(ImageClassificationConfig, values)
    assert not [word for word in words if word not in str(raised.value)]


@table(
    ({"num_beams": 9}, "num_beams 9 is more than num_beams_limit 8"),
    ({"max_new_tokens": 13, "max_new_tokens_limit": 12}, "max_new_tokens 13 is more than max_new_tokens_limit 12"),
    ({"engine": "torch", "precision": "int8"}, "precision int8 is CTranslate2's; torch has fp32, bf16 and fp16"),
    *(({"src_lang": "auto", **more}, "src_lang: auto needs a detector") for more in ({}, {"detector": None})),
    *(({"detector": {"file": "f", **more}}, "the name of a file is needed") for more in ({}, {"packages": "p"})),
)
def test_settings_that_contradict_each_other_are_rejected_and_limits_may_be_reached(values: Any, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse(TranslationConfig, values)
    most = {"num_beams": 8, "max_new_tokens": 12, "max_new_tokens_limit": 12, "precision": "int8"}
    parse(TranslationConfig, {**most, "src_lang": "auto", "detector": {"package": "p", "file": "f"}})
    parse(TranslationConfig, {"engine": "torch", "precision": "bf16", "detector": "lid.bin"})


def test_names_above_handler_are_those_that_torchserves_frontend_reads() -> None:
    """The oracle is `ModelConfig.build` in its jar: the class file's String constants (JVM specification, 4.4.3)."""
    sizes = {7: 2, 8: 2, 16: 2, 19: 2, 20: 2, 15: 3, 5: 8, 6: 8}
    with ZipFile(Path(ts.__path__[0]) / "frontend" / "model-server.jar") as jar:
        code = jar.read("org/pytorch/serve/archive/model/ModelConfig.class")
    texts, strings, at, number = {}, [], 10, 1
    while number < int.from_bytes(code[8:10]):
        kind, value = code[at], int.from_bytes(code[at + 1 : at + 3])
        if kind == 1:
            texts[number] = code[at + 3 : at + 3 + value].decode()
        elif kind == 8:
            strings.append(value)
        at += 3 + value if kind == 1 else 1 + sizes.get(kind, 4)
        number += 2 if kind in (5, 6) else 1
    assert {texts[each] for each in strings if texts[each].isalnum()} == FRONTEND_NAMES
    check_names({**dict.fromkeys(FRONTEND_NAMES, 1), "pt2": {}, "handler": {}})


def test_unknown_name_is_rejected_with_the_one_that_was_meant_or_its_place() -> None:
    with pytest.raises(InvalidConfig) as above:
        check_names({"batch_size": 8, "handlers": {}, "top_k": 3})
    likely = "batch_size: unknown name (did you mean batchSize?); handlers: unknown name (did you mean handler?)"
    assert str(above.value) == f"{likely}; top_k: unknown name (settings of a task belong under handler:)"
    with pytest.raises(InvalidConfig) as below:
        parse(HandlerConfig, {"batchSize": 8, "max_batch_itms": 2, "scheduling": {"latency_target": 3}, "x": 1})
    words = ("batchSize: unknown name (it belongs above handler:)", "(did you mean max_batch_items?)")
    assert not [word for word in (*words, "latency_target_ms?") if word not in str(below.value)]


@table(
    *(("max_items", "now max_batch_items"), ("max_tokens", "now max_batch_tokens")),
    ("max_instances", "now max_request_items"),
    ("max_batch_size", "now max_batch_items for one run of the model and max_request_items for one request"),
    ("split_requests", "removed; max_request_items may exceed max_batch_items"),
    ("scheduling: max_batch_items", "it belongs directly under handler:"),
)
def test_former_name_of_a_limit_is_rejected_with_the_new_one(name: str, now: str) -> None:
    section, _, inner = name.partition(": ")
    with pytest.raises(InvalidConfig) as raised:
        parse(TensorsConfig, {section: {inner: 8} if inner else 8})
    assert str(raised.value) == f"handler: {name}: unknown name ({now})"


@table(
    *(({}, {}, "classic"), ({}, {"continuousBatching": "true"}, "classic")),
    ({"mode": "auto"}, {"continuousBatching": True}, "adaptive"),
    ({"mode": "classic"}, {"continuousBatching": True}, "classic"),
    ({"mode": "adaptive"}, {}, "adaptive"),
)
def test_mode_left_open_is_adaptive_where_torchserve_lets_it(named: Any, settings: dict[str, Any], mode: str) -> None:
    own = {"scheduling": {"max_queue_items": 7, **named}, "max_batch_items": 3}
    config = resolve_mode(parse(HandlerConfig, own), settings)
    assert (config.scheduling.mode, config.scheduling.max_queue_items, config.max_batch_items) == (mode, 7, 3)


def test_wrong_options_are_rejected_with_the_known_ones_and_not_quoted() -> None:
    for values in ({"top_k": "many secrets"}, {"top_k": 0}, {"top_k": 1.5}, {"k": "many secrets"}):
        with pytest.raises(InvalidOption, match=r"Known options: top_k, function_to_apply\.") as raised:
            parse_options(ImageClassificationOptions, values)
        assert "secrets" not in str(raised.value)
    with pytest.raises(InvalidOption, match=r"101 options; at most 100 are accepted\."):
        parse_options(ImageClassificationOptions, {f"option{number}": 1 for number in range(101)})
    for name in ("__dataclass_self__", "self"):
        with pytest.raises(InvalidOption, match=r"Known options: top_k, threshold, label_prefix\."):
            parse_options(LanguageIdOptions, {name: 1})


class Inherited(HandlerConfig):
    palette: str = "palette.csv"
    shades: list[int] = Field(default=[1, 2])
    max_batch_items = 8


class Plain:
    palette = "palette.csv"
    shades: Annotated[list[int], Field(max_length=2)] = [1, 2]  # noqa: RUF012
    max_batch_items = 8


@dataclass
class Data:
    palette: str = "palette.csv"
    shades: list[int] = field(default_factory=lambda: [1, 2])
    max_batch_items: int = 8


@pytest.mark.parametrize("kind", [Inherited, Plain, Data])
def test_settings_of_any_class_are_checked_and_have_those_of_every_task(kind: type) -> None:
    settings = complete(kind, HandlerConfig)
    read: Any = parse(settings, {"shades": [3], "threads": 2})
    assert read.precision == "auto" and issubclass(settings, HandlerConfig)
    assert (read.palette, read.shades, read.threads, read.max_batch_items) == ("palette.csv", [3], 2, 8)
    with pytest.raises(InvalidConfig, match="palete: unknown name"):
        parse(settings, {"palete": ""})
    with pytest.raises(InvalidConfig, match="palette: Input should be a valid"):
        parse(settings, {"palette": 3})
    assert complete(settings, HandlerConfig) is settings


@pytest.mark.parametrize("kind", [Plain, Data])
def test_options_of_any_class_are_checked(kind: type) -> None:
    options = complete(kind, NoOptions)
    assert parse_options(options, {"palette": "a"}).palette == "a"
    with pytest.raises(InvalidOption, match=r"foo: Unexpected keyword argument\. Known options: palette, .*shades"):
        parse_options(options, {"foo": 3})
