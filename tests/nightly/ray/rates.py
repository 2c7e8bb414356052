"""Ray Serve against TorchServe with the same archives, through HAProxy and direct ingress.

Both servers run all the time, and take turns; what Ray's idle processes take slows both.

    python -m tests.nightly.ray.rates --rounds 1 -> the figures of docs/reference/results.md#hosts
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from deploy.sandbox import run_server
from load.bench import archives, samples
from load.bench.__main__ import PARTS, Part, main
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Endpoint, register
from load.bench.rounds import POISSON_LENGTH, Bench, Comparison, Results
from load.bench.table import Row
from load.bench.texts import EMBEDDING
from load.generate import ClosedLoop, OpenLoop
from load.schedules import Poisson
from tests.nightly.ray.cluster import cluster

TORCHSERVE, RAY = "TorchServe", "Ray Serve"
CLIENTS = (1, 16, 64)
# The arrivals for p99, relative to TorchServe's rate with the most clients; only for embeddings.
SHARE = 0.6
CORES = 2


def measure(bench: Bench) -> Iterator[Row]:
    """Measure images, embeddings and a model of tensors that computes next to nothing."""
    tensors = samples.json_inputs([{"inputs": {"INPUT_1": [[number], [-number]]}} for number in range(64)])
    texts = samples.singles(samples.texts())
    inputs = {bench.classifier: samples.images(), "mobilenet-v2": samples.images(), EMBEDDING: texts, "batch2": tensors}
    folders = {name: archives.build(bench, name, bench.work) for name in inputs}
    with (
        run_server(bench.work, extra=CPU_ONLY) as server,
        tempfile.TemporaryDirectory() as home,
        cluster(Path(home), CORES) as ray,
    ):
        models = [{"archive": str(folders[name]), "cpus": CORES / len(inputs), "threads": CORES} for name in inputs]
        ray.deploy(models=models)
        contenders = {
            name: [
                register(server, name, TORCHSERVE, each, WINDOW),
                Endpoint(RAY, f"{ray.http}/predictions/{name}", each),
            ]
            for name, each in inputs.items()
        }
        results = Results()
        for each in contenders.values():
            bench.settle(each, ClosedLoop(CLIENTS[-1]))
        for number in bench:
            for name, clients in product(inputs, map(ClosedLoop, CLIENTS)):
                bench.compare(number, Comparison(clients, contenders[name], f"{name}, {clients}"), results)
            capacity_per_s = results[f"{EMBEDDING}, {ClosedLoop(CLIENTS[-1])}", TORCHSERVE][-1].per_s
            arrivals = OpenLoop(Poisson(SHARE * capacity_per_s, seed=number))
            name = f"{EMBEDDING}, Poisson at {SHARE:.0%}"
            bench.compare(number, Comparison(arrivals, contenders[EMBEDDING], name, POISSON_LENGTH), results)
    for name in inputs:
        for clients in map(ClosedLoop, CLIENTS[1:]):
            yield results.row(f"{name}, {clients}, /s", f"{name}, {clients}", RAY, TORCHSERVE)
        lone = f"{name}, {ClosedLoop(1)}"
        yield results.row(f"{lone}, p50 in ms", lone, RAY, TORCHSERVE, "p50_ms")
    at = f"{EMBEDDING}, Poisson at {SHARE:.0%}"
    yield results.row(f"{at}, p99 in ms", at, RAY, TORCHSERVE, "p99_ms")


if __name__ == "__main__":
    PARTS["ray"] = Part("tests.nightly.ray.rates:measure", ("ray",))
    sys.exit(main(["ray", *sys.argv[1:]]))
