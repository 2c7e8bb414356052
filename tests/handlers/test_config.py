from typing import Any

import pytest

from handlers.config import ImageClassificationConfig, ImageClassificationOptions, parse, parse_options
from handlers.errors import InvalidConfig, UnknownOption


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


def test_options_known_are_typed() -> None:
    assert parse_options(ImageClassificationOptions, {"top_k": 3}).top_k == 3
    assert parse_options(ImageClassificationOptions, {}).top_k is None


@pytest.mark.parametrize("values", [{"top_k": "many secrets"}, {"top_k": 0}, {"top_k": 1.5}, {"k": "many secrets"}])
def test_options_unknown_name_what_is_known_and_quote_no_value(values: dict[str, Any]) -> None:
    with pytest.raises(UnknownOption) as raised:
        parse_options(ImageClassificationOptions, values)
    assert "Known options: top_k." in str(raised.value)
    assert "secrets" not in str(raised.value)
