"""Files of settings: a YAML document, and one error that lists every problem of its values.

It imports `handlers` only for an error: a process of one archive has that archive's own.
"""

import json
import os
import stat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from deploy.yaml_text import parse_yaml

MOST_BYTES = 1 << 20  # bytes of a file of settings

# An origin of web pages, or * for all.
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[A-Za-z0-9.:\[\]-]{1,253})$")]
# The address of a collector of OpenTelemetry, which takes OTLP over HTTP.
Collector = Annotated[str, Field(pattern=r"^http://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):[0-9]{1,5}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
Settings = TypeVar("Settings")


def read_yaml(path: Path) -> Any:
    """Return a document of YAML; an InvalidConfig names the line that cannot be read."""
    content = read_file(path)
    try:
        return parse_yaml(content.decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise _invalid(f"{path.name}{f', line {mark.line + 1}' if mark else ''}: not valid YAML") from None


def read_file(path: Path) -> bytes:
    """Read a regular file of at most MOST_BYTES, or raise InvalidConfig: a pipe or a device could have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise _invalid(f"{path.name}: not a regular file")
    # A pipe in its place meanwhile would block.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if len(content := file.read(MOST_BYTES + 1)) > MOST_BYTES:
            raise _invalid(f"{path.name}: over {MOST_BYTES} bytes")
        return content


def read_settings(kind: type[Settings], path: Path, document: object) -> Settings:
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
