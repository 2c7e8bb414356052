"""Files of settings: a YAML document, and one error that lists every problem of its values."""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from handlers.errors import InvalidConfig

Port = Annotated[int, Field(ge=1, le=65535)]


def read_yaml(path: Path) -> Any:
    """Return a document of YAML; an InvalidConfig names the line that cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InvalidConfig(f"{path.name}{where}: not valid YAML") from None


def describe_problems(error: ValidationError, whole: str) -> str:
    """Return every problem with its field (`whole` without one); never a value, which may be an API key."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False)
    )
