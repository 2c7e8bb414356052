"""Each kind of door, with a model that doubles a number behind it, until the block ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.nodes.run.server import Server
from load import sandbox
from tests.deploy.hosts.serve.conftest import number_archive
from tests.doors.door import MODEL, Door, ask, ask_grpc, is_kept_by
from tests.hosts import is_ready, start
from tests.nightly.ray.cluster import Cluster
from tests.waiting import until

INFER = """
def infer(x):
    if x[0] in (500, 507):
        raise MemoryError if x[0] == 507 else ValueError
    return {"y": x * 2}
"""
HEAD_S, BODY_S = 5.0, 8.0  # seconds in which a head and a body must come, where a door has such settings
# A quarter of the default memory, so that the rows are small.
LIMITS = {"memory_bytes": 64 << 20, "head_s": HEAD_S, "body_s": BODY_S, "connections": 300}


def archive(folder: Path) -> Path:
    return number_archive(MODEL, INFER, folder)


@contextmanager
def one_process(folder: Path, *words: str) -> Iterator[Door]:
    """Serve in one process, or in the several that `words` ask for."""
    (config := folder / "limits.yaml").write_text(yaml.safe_dump(LIMITS))
    host = start(archive(folder), "--config", config, *words)
    try:
        until(lambda: is_ready(host))
        processes = [host.process.pid, *(each.pid for each in psutil.Process(host.process.pid).children())]
        yield Door("several processes" if words else "one process", host.url, tuple(processes), host.grpc)
    finally:
        host.end()


def torchserve(server: Server) -> Door:
    """Return the door of a TorchServe that serves the model."""
    queue = server.settings.job_queue_size
    return Door("TorchServe", server.settings.inference_url, (), queue=queue, is_pipelined=False)


@contextmanager
def gateway(server: Server, tls: dict[str, str] | None = None, ca: str | None = None) -> Iterator[Door]:
    times = {"header_s": HEAD_S, "body_s": BODY_S, "idle_s": 20.0, "unresponsive_s": 60.0, "attempt_connect_s": 10.0}
    limits = {**times, "connections": 300, "body_bytes": 6 << 20}
    more: dict[str, Any] = {"tls": tls} if tls else {}
    with sandbox.run_gateway([sandbox.make_node(server)], limits=limits, **more) as running:
        envoy = int((running.state_dir / "envoy.pid").read_text())
        # Half of Envoy's heap, and a part that it does not count.
        queue = server.settings.job_queue_size
        door = Door("gateway", running.http, (envoy,), running.grpc, ca, most_mib=1300, queue=queue)
        until(lambda: is_kept_by(door, ask) and is_kept_by(door, ask_grpc))
        yield door


def ray(cluster: Cluster, model: Path) -> Door:
    """Return the door of a cluster of Ray, which then serves the model alone."""
    cluster.deploy(models=[{"archive": str(model), "cpus": 0.4, "threads": 1}])
    # The processes of our code that read what clients send.
    pids = (*cluster.replicas("routes", "routes"), *cluster.replicas(MODEL))
    door = Door("Ray Serve", cluster.http, pids, cluster.grpc)
    until(lambda: is_kept_by(door, ask) and is_kept_by(door, ask_grpc))
    return door
