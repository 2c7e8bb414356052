from typing import Any

import pytest

from handlers.config import HandlerConfig, parse, parse_options
from handlers.errors import InvalidConfig, UnknownOption
from handlers.text.config import LanguageIdOptions
from handlers.vision.config import ImageClassificationConfig, ImageClassificationOptions


def test_config_minimal_takes_documented_defaults() -> None:
    config = parse(ImageClassificationConfig, {"arch": "resnet152", "mean": [0, 0.5, 1]})
    assert (config.arch, config.resize_size, config.crop_size, config.top_k) == ("resnet152", 256, 224, 5)
    assert config.mean == (0.0, 0.5, 1.0)
    assert (config.engine, config.precision, config.max_instances) == ("auto", "auto", 64)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, ["arch"]),
        ([], ["mapping"]),
        ({1: 2}, ["mapping"]),
        ({"arch": "a", "archh": "b"}, ["archh"]),
        ({"arch": 7}, ["arch", "string"]),
        ({"arch": "a", "max_items": True}, ["max_items", "integer"]),
        ({"arch": "a", "max_items": 0}, ["max_items", "greater than or equal to 1"]),
        ({"arch": "a", "engine": "tensorrt"}, ["engine", "openvino"]),
        ({"arch": "a", "mean": [1, 2]}, ["mean"]),
        ({"arch": "a", "std": [1, 1, 0]}, ["std must be more than 0"]),
        ({"arch": "a", "crop_size": 300}, ["crop_size 300", "resize_size 256"]),
        ({"archh": 1, "top_k": 0, "threads": -1}, ["arch:", "archh", "top_k", "threads"]),
    ],
)
def test_config_wrong_lists_every_problem(values: Any, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse(ImageClassificationConfig, values)
    for word in words:
        assert word in str(raised.value)


def test_scheduling_unnamed_is_left_open_without_a_target_and_named_takes_documented_defaults() -> None:
    unnamed = parse(HandlerConfig, {}).scheduling
    assert (unnamed.mode, unnamed.max_latency_ms) == ("auto", None)
    scheduling = parse(HandlerConfig, {"scheduling": {"mode": "adaptive", "max_latency_ms": 50}}).scheduling
    assert (scheduling.mode, scheduling.max_latency_ms, scheduling.queue_timeout_ms) == ("adaptive", 50, None)
    assert (scheduling.priority_levels, scheduling.default_priority, scheduling.timeout_action) == (1, None, "reject")
    assert (scheduling.max_batch_items, scheduling.max_batch_tokens) == (None, None)
    assert (scheduling.max_queue_items, scheduling.overload_status) == (512, 503)


@pytest.mark.parametrize(
    ("scheduling", "words"),
    [
        ("adaptive", ["scheduling: a mapping of names"]),
        (None, ["scheduling: a mapping of names"]),
        ({1: 2}, ["scheduling: a mapping of names"]),
        ({"mode": "magic"}, ["scheduling", "mode", "auto", "classic", "adaptive"]),
        ({"max_latency": 5}, ["scheduling", "max_latency", "Unexpected"]),
        ({"max_latency_ms": 0}, ["max_latency_ms", "greater than 0"]),
        ({"max_latency_ms": float("inf")}, ["max_latency_ms"]),
        ({"max_latency_ms": "500"}, ["max_latency_ms", "number"]),
        ({"max_batch_items": 0}, ["max_batch_items", "greater than or equal to 1"]),
        ({"priority_levels": 11}, ["priority_levels", "less than or equal to 10"]),
        ({"priority_levels": 3, "default_priority": 4}, ["default_priority 4", "priority_levels 3"]),
        ({"timeout_action": "drop"}, ["timeout_action", "reject", "delay"]),
        ({"overload_status": 500}, ["overload_status", "429", "503"]),
        ({"max_queue_items": True}, ["max_queue_items", "integer"]),
        ({"mod": 1, "queue_timeout_ms": -1, "max_batch_tokens": 0}, ["mod:", "queue_timeout_ms", "max_batch_tokens"]),
    ],
)
def test_scheduling_wrong_is_one_error_that_lists_every_problem(scheduling: Any, words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse(HandlerConfig, {"scheduling": scheduling, "max_items": 0})
    for word in [*words, "max_items"]:
        assert word in str(raised.value)


def test_options_known_are_typed() -> None:
    assert parse_options(ImageClassificationOptions, {"top_k": 3}).top_k == 3
    assert parse_options(ImageClassificationOptions, {}).top_k is None


@pytest.mark.parametrize("values", [{"top_k": "many secrets"}, {"top_k": 0}, {"top_k": 1.5}, {"k": "many secrets"}])
def test_options_unknown_name_what_is_known_and_quote_no_value(values: dict[str, Any]) -> None:
    with pytest.raises(UnknownOption) as raised:
        parse_options(ImageClassificationOptions, values)
    assert "Known options: top_k." in str(raised.value)
    assert "secrets" not in str(raised.value)


@pytest.mark.parametrize("name", ["__dataclass_self__", "self", "args", "__init__"])
def test_options_named_like_python_s_own_are_unknown(name: str) -> None:
    with pytest.raises(UnknownOption, match=r"Known options: top_k, threshold, label_prefix\."):
        parse_options(LanguageIdOptions, {name: 1})


def test_options_names_that_are_no_names_and_problems_beyond_the_first_are_counted() -> None:
    wrong = {"top_k": 0, "topk": 1, "secret " * 1000: 1, "clé": 1, **{f"option{index}": 1 for index in range(996)}}
    with pytest.raises(UnknownOption) as raised:
        parse_options(ImageClassificationOptions, wrong)
    message = str(raised.value)
    assert "topk: Unexpected keyword" in message
    assert "a name of 7000 characters: Unexpected keyword" in message
    assert "a name of 3 characters: Unexpected keyword" in message
    assert "; 995 more." in message
    assert "secret" not in message
    assert len(message) < 500
