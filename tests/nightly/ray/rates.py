"""Ray Serve against TorchServe with the same archives, through HAProxy and direct ingress.

Both servers run all the time, and take turns; what Ray's idle processes take slows both.

    python -m tests.nightly.ray.rates --rounds 1 -> the figures of docs/reference/results.md#hosts
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from load.bench import archives, samples
from load.bench.__main__ import PARTS, Part, main
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Endpoint, register
from load.bench.rounds import Bench, Comparison, Row
from load.bench.texts import EMBEDDING
from load.generate import ClosedLoop
from load.sandbox import run_server
from tests.nightly.ray.cluster import cluster

TORCHSERVE, RAY = "TorchServe", "Ray Serve"
CLIENTS = tuple(map(ClosedLoop, (1, 16, 64)))
CORES = 2


def measure(bench: Bench) -> Iterator[Row]:
    """Measure images, embeddings and a model of tensors that computes next to nothing."""
    tensors = samples.json_inputs([{"inputs": {"INPUT_1": [[number], [-number]]}} for number in range(64)])
    inputs = {"mobilenet-v2": samples.images(), EMBEDDING: samples.singles(samples.texts()), "batch2": tensors}
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
        for each in contenders.values():
            bench.settle(each, CLIENTS[-1])
        cases = {f"{name}, {clients}": (clients, contenders[name]) for name, clients in product(inputs, CLIENTS)}
        results = bench.measure([Comparison(*case, name) for name, case in cases.items()])
    for name in cases:
        yield results.row(f"{name}, /s", name, RAY, TORCHSERVE)


if __name__ == "__main__":
    PARTS["ray"] = Part("tests.nightly.ray.rates:measure", ("ray",))
    sys.exit(main(["ray", *sys.argv[1:]]))
