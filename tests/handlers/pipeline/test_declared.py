"""A user's class of settings or options: plain, a dataclass, or both, with checked values."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import Field

from handlers.config import HandlerConfig, NoOptions, parse, parse_options
from handlers.errors import InvalidConfig, InvalidOption
from handlers.pipeline.declared import complete


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
