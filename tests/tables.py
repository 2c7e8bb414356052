"""Tests that have a row of arguments for each case."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def table(*rows: Any) -> Callable[[Test], Test]:
    """Run a test once with each row, which is a tuple of its first arguments, or its first argument alone."""

    def decorate(test: Test) -> Test:
        # A row of pytest.param is a tuple of another type.
        count = next((len(row) for row in rows if type(row) is tuple), 1)
        decorated: Test = pytest.mark.parametrize(",".join([*inspect.signature(test).parameters][:count]), rows)(test)
        return decorated

    return decorate
