"""Files of settings: a YAML document, and one error that lists every problem of its values.

It imports `handlers` only for an error: a process of one archive has that archive's own.
"""

import json
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

# An origin of web pages, or * for all.
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9.:\[\]-]{1,253})$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Settings = TypeVar("Settings")


def read_yaml(path: Path) -> Any:
    """Return a document of YAML; an InvalidConfig names the line that cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise _invalid(f"{path.name}{f', line {mark.line + 1}' if mark else ''}: not valid YAML") from None


def read_settings(kind: type[Settings], path: Path, document: Any) -> Settings:
    """Read a document of a file; an InvalidConfig lists every problem."""
    try:
        # In JSON mode a list may become a tuple and an object a dataclass; nothing else is converted.
        return TypeAdapter(kind).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise _invalid(f"{path.name}: {describe_problems(error, 'it')}") from None
    except (TypeError, ValueError):
        raise _invalid(f"{path.name}: contains a key that is not text, or itself") from None


def describe_problems(error: ValidationError, whole: str) -> str:
    """Return every problem with its field (`whole` without one); never a value, which may be an API key."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False)
    )


def _invalid(message: str) -> Exception:
    from handlers.errors import InvalidConfig  # noqa: PLC0415

    return InvalidConfig(message)
