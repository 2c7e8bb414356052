"""models.yaml -> Serve's configuration: an application for each archive, and one at /."""

import math
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from deploy.loader import OtherFormat, check_format, manifest_of, settings_of
from deploy.places import ARCHIVE
from deploy.settings_file import Port, read_settings, read_yaml
from handlers.config import SETTINGS, Count, HandlerConfig, SchedulingConfig
from handlers.errors import InvalidConfig
from torchserve_client.payloads import Json

# Of both kinds of deployment: a new replica starts before an old one stops, which has a minute for its requests.
SHARED = {"max_surge_percent": 100, "graceful_shutdown_timeout_s": 60.0, "health_check_period_s": 5.0}
# By the requests that wait and run: seconds to a new replica, to one less, and of the mean that decides.
SCALING = {"upscale_delay_s": 0.0, "downscale_delay_s": 300.0, "look_back_period_s": 2.0, "metrics_interval_s": 1.0}
# A replica accepts this many times the requests that its core admits; the core rejects the others with Retry-After.
ROOM = 2


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Served:
    """One archive."""

    archive: str
    replicas: Count | tuple[Count, Count] = 1  # or the least and the most
    ongoing_requests: Annotated[float, Field(gt=0, le=1e5)] | None = None  # of a replica; None for a full micro-batch
    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    gpus: Annotated[float, Field(ge=0, le=64)] = 0.0
    threads: Annotated[int, Field(ge=0, le=1024)] | None = None  # None for cpus, rounded up; 0 for the archive's own


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Settings:
    """All settings."""

    models: Annotated[tuple[Served, ...], Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Port = 8000
    grpc_port: Port = 8001
    invocations: str | None = None
    default_models: tuple[str, ...] = ()
    body_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 32 << 20


def read(path: Path) -> Json:
    """Return Serve's configuration of models.yaml, whose paths are relative to it; InvalidConfig names all problems."""
    if not path.is_file():
        raise InvalidConfig(f"no file {path}; docs/how-to/ray-serve.md describes it")
    settings = read_settings(Settings, path, read_yaml(path))
    archives = [(path.parent / each.archive).resolve() for each in settings.models]
    if missing := [str(each) for each in archives if not each.exists()]:
        raise InvalidConfig(f"{path.name}: no such archive: {', '.join(missing)}; {ARCHIVE} builds archives")
    try:
        for each in archives:
            check_format(each)
    except OtherFormat as error:
        raise InvalidConfig(f"{path.name}: {error}") from None
    names = [str(manifest_of(each)["model"]["modelName"]) for each in archives]
    if len({*names}) < len(names) or settings.invocations not in (None, *names):
        raise InvalidConfig(f"{path.name}: expected different models, and invocations to be one; they are {names}")
    args: dict[str, object] = {"models": names, "invocations": settings.invocations, "body_bytes": settings.body_bytes}
    args |= {"preferred": settings.default_models} if settings.default_models else {}
    # It computes nothing, and leaves the processors to the archives' replicas.
    front = {"name": "routes", **SHARED, "max_ongoing_requests": 4096, "ray_actor_options": {"num_cpus": 0}}

    def application(name: str, builder: str, args: Json, deployment: Json) -> Json:
        made = {"import_path": f"deploy.hosts.ray.app:{builder}", "args": {"host": settings.host, **args}}
        prefix = "/" if builder == "routes" else f"/predictions/{name}"
        return {"name": name, "route_prefix": prefix, **made, "deployments": [deployment]}

    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": settings.host, "port": settings.port},
        "grpc_options": {"port": settings.grpc_port, "grpc_servicer_functions": ["deploy.hosts.ray.app.add_servicer"]},
        "logging_config": {"enable_access_log": False},
        "applications": [
            *(
                application(name, "archive", *_archive(path, served))
                for name, path, served in zip(names, archives, settings.models, strict=True)
            ),
            application("routes", "routes", args, front),
        ],
    }


def _archive(path: Path, served: Served) -> tuple[Json, Json]:
    """Return the arguments and the deployment of an archive."""
    handler = settings_of(path).get("handler") or {}
    scheduling = handler.get("scheduling") or {}
    admitted = scheduling.get("max_queue_items", SchedulingConfig().max_queue_items)
    micro_batch = handler.get("max_batch_items", HandlerConfig().max_batch_items)
    deployment = {"name": "archive", **SHARED, "max_ongoing_requests": ROOM * admitted}
    if isinstance(served.replicas, int):
        deployment["num_replicas"] = served.replicas
    else:
        least, most = served.replicas
        target = served.ongoing_requests or micro_batch
        deployment["autoscaling_config"] = {
            **{"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target},
            **SCALING,
        }
    deployment["ray_actor_options"] = {"num_cpus": served.cpus, "num_gpus": served.gpus}
    threads = math.ceil(served.cpus) if served.threads is None else served.threads
    return {"archive": str(path), "threads": threads, "gpu": served.gpus > 0}, deployment
