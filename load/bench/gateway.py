"""The cost of the gateway: requests through it, through an Envoy with only a router, and direct to TorchServe.

Load generator, Envoy and TorchServe share the cores, so the ratio is lowest for cheap models.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from deploy import sandbox
from deploy.gateway.envoy import process
from deploy.gateway.envoy.resources import TYPE, make_address
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import register
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

LANGUAGE_ID = "language-id"
STRAIGHT = "straight to TorchServe"
ROUTER = "an Envoy without filters"
THROUGH = "through the gateway"
# Words per text: a sentence, since the gateway's share of the cost is highest for short texts.
WORDS = 16
TEXT_CLIENTS = 64
IMAGE_CLIENTS = 48


def measure(bench: Bench) -> Iterator[Row]:
    """Measure language identification, a very cheap model, and image classification."""
    texts = samples.singles([" ".join((text.split() * WORDS)[:WORDS]) for text in samples.texts()])
    inputs = {LANGUAGE_ID: texts, bench.classifier: samples.images()}
    for name in inputs:
        archives.build(bench, name, bench.work)
    with (
        sandbox.run_server(bench.work, extra=CPU_ONLY) as server,
        sandbox.run_gateway([sandbox.make_node(server)]) as gateway,
        run_router(int(server.settings.inference_url.rpartition(":")[2])) as bare,
    ):
        contenders = {}
        for name, each in inputs.items():
            straight = register(server, name, STRAIGHT, each, WINDOW)
            ways = ((ROUTER, bare), (THROUGH, gateway.http))
            others = [(way, straight.url.replace(server.settings.inference_url, url)) for way, url in ways]
            contenders[name] = [straight, *(replace(straight, name=way, url=url) for way, url in others)]
            bench.settle(contenders[name], ClosedLoop(TEXT_CLIENTS))
        some = [(LANGUAGE_ID, TEXT_CLIENTS), (bench.classifier, IMAGE_CLIENTS), (LANGUAGE_ID, 1)]
        comparisons = [Comparison(ClosedLoop(n), contenders[name], f"{name}, {ClosedLoop(n)}") for name, n in some]
        results = bench.measure(comparisons)
    for against in (STRAIGHT, ROUTER):
        for comparison in comparisons[:2]:
            yield results.row(f"{comparison}, /s", comparison, THROUGH, against)
        yield results.row(f"{comparisons[2]}, p50 in ms", comparisons[2], THROUGH, against, "p50_ms")


@contextmanager
def run_router(upstream: int) -> Iterator[str]:
    """Run an Envoy that forwards all requests to a port of this machine; yield its address."""
    (port,) = sandbox.free_ports(1)
    to_server = {"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}}
    manager = {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bare",
        "http_filters": [
            {"name": "router", "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.router.v3.Router"}}
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [to_server]}]},
    }
    host = {"endpoint": {"address": make_address("127.0.0.1", upstream)}}
    endpoints = {"cluster_name": "server", "endpoints": [{"lb_endpoints": [host]}]}
    listener = {
        "address": make_address("127.0.0.1", port),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    document = {"listeners": [listener], "clusters": [{"name": "server", "load_assignment": endpoints}]}
    words = ["--config-yaml", json.dumps({"static_resources": document}), "--disable-hot-restart", "--log-level", "off"]
    with subprocess.Popen([process.find_program(), *words]) as envoy:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            envoy.terminate()
