"""A user's class of settings or options, plain or a dataclass, as a dataclass that checks its values.

class Settings:                          -> complete(Settings, HandlerConfig): every task's settings and `palette`,
    palette: str = "palette.csv"            frozen, strict, without unknown names
"""

from copy import deepcopy
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import partial
from typing import Any

from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS

CHECKED = "__pydantic_validator__"  # the mark of a class whose values pydantic checks


def complete(cls: type, base: type) -> Any:
    """Return a class with the fields of both; a default without an annotation has its own type as annotation."""
    is_whole = issubclass(cls, base) or not fields(base)
    if cls is base or (is_dataclass(cls) and CHECKED in vars(cls) and is_whole):
        return cls
    types = {each.name: each.type for each in fields(base)}
    annotations: dict[str, object] = {}
    values: dict[str, object] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    for each in [each for each in reversed(cls.__mro__) if each not in base.__mro__]:
        declared = vars(each).get("__annotations__", {})
        for name, value in {**vars(each), **_factories(each)}.items():
            if not name.startswith("__") or name == "__post_init__":
                # As a list, of which each instance gets a copy.
                is_mutable = type(value).__hash__ is None and not isinstance(value, Field)
                values[name] = field(default_factory=partial(deepcopy, value)) if is_mutable else value
                if name not in declared and not name.startswith("_") and _is_default(value):
                    annotations[name] = types.get(name, type(value))
        annotations |= declared
    made = type(cls.__name__, (base,), {**values, "__annotations__": annotations})
    return dataclass(frozen=True, kw_only=True, config=SETTINGS)(made)


def _factories(cls: type) -> dict[str, object]:
    """Return the defaults of a dataclass that a function makes: its attributes lack them."""
    found: dict[str, Field[Any]] = vars(cls).get("__dataclass_fields__", {})
    made = {name: each.default_factory for name, each in found.items() if each.default_factory is not MISSING}
    return {name: field(default_factory=factory) for name, factory in made.items()}


def _is_default(value: object) -> bool:
    return not callable(value) and not hasattr(value, "__get__")
