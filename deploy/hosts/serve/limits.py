"""The limits of `--config`."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from deploy.settings_file import Collector, Origin

Seconds = Annotated[float, Field(ge=0, le=86_400)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class HostLimits:
    """Limits. A body's bytes are the archive's `max_body_bytes`."""

    connections: Annotated[int, Field(ge=1)] = 1024  # of HTTP, and of gRPC; one more is closed
    requests: Annotated[int, Field(ge=1)] = 1024  # that run or wait; one more gets 503
    memory_bytes: Annotated[int, Field(ge=1 << 20)] = 256 << 20  # of all bodies and messages; one more gets 503
    head_bytes: Annotated[int, Field(ge=1024)] = 8192  # of a request's path, query and headers
    head_s: Seconds = 30.0  # in which they must come
    body_s: Seconds = 60.0  # in which a body or message must come, and in which an answer must be read
    keep_alive_s: Annotated[int, Field(ge=1)] = 330  # of an idle connection: longer than the gateway's
    notice_s: Seconds = 5.0  # from SIGTERM, in which new requests are still served
    drain_s: Seconds = 60.0  # from SIGTERM to the end
    heartbeat_s: Annotated[float, Field(ge=2, le=86_400)] = 30.0  # without an answer until a process is replaced
    load_s: Seconds = 60.0  # in which a model of --store must be loaded; a request that waits longer gets 503
    management: bool = False  # whether clients may load and unload models of --store
    cors: tuple[Origin, ...] = ()  # origins of web pages that may call from a browser
    traces: Collector | None = None  # the collector of spans
