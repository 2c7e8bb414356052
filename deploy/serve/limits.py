"""The limits of the host, which --config may change."""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from deploy.yaml_text import describe_problems, parse_yaml

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Limits:
    """Limits. A body's bytes are the archive's `max_body_bytes`."""

    connections: Annotated[int, Field(ge=1)] = 1024  # of HTTP; one more is closed
    requests: Annotated[int, Field(ge=1)] = 1024  # that run or wait; one more gets 503
    head_bytes: Annotated[int, Field(ge=1024)] = 8192  # of a request's path, query and headers
    head_s: Seconds = 30.0  # in which they must come
    body_s: Seconds = 60.0  # in which a body must come, and in which an answer must be read
    keep_alive_s: Annotated[int, Field(ge=1)] = 330  # of an idle connection: longer than the gateway's
    notice_s: Seconds = 5.0  # from SIGTERM, in which new requests are still served
    drain_s: Seconds = 60.0  # from SIGTERM to the end


def read_limits(path: Path | None) -> Limits:
    """Read the limits of a file; a ValueError has one line."""
    try:
        return TypeAdapter(Limits).validate_python((parse_yaml(path.read_text("utf-8")) or {}) if path else {})
    except ValidationError as error:
        raise ValueError(f"{path}: {describe_problems(error, 'it')}") from None
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
