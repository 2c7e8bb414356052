"""What the gateway costs: through it, and straight to TorchServe.

Load generator, Envoy and TorchServe share the cores, so the ratio is lower the less a request costs the model.
"""

from collections.abc import Iterator
from dataclasses import replace

from deploy import sandbox
from load.bench import archives, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import registered
from load.bench.rounds import Bench, Comparison
from load.bench.table import Row
from load.generate import ClosedLoop

LANGUAGE_ID = "language-id"
STRAIGHT, THROUGH = "straight to TorchServe", "through the gateway"
# Words of a text: a sentence, since the shorter it is, the more of a request is the gateway's cost.
WORDS = 16
TEXT_CLIENTS, IMAGE_CLIENTS = 64, 48


def rows(bench: Bench) -> Iterator[Row]:
    """Measure language identification, which costs next to nothing itself, and image classification."""
    texts = samples.singles([" ".join((text.split() * WORDS)[:WORDS]) for text in samples.texts()])
    inputs = {LANGUAGE_ID: texts, bench.classifier: samples.images()}
    for name in inputs:
        archives.build(bench, name, bench.work)
    with (
        sandbox.started(bench.work, extra=CPU_ONLY) as server,
        sandbox.gateway([sandbox.node_of(server)]) as gateway,
    ):
        pairs = {}
        for name, each in inputs.items():
            straight = registered(server, name, STRAIGHT, each, WINDOW)
            url = straight.url.replace(server.settings.inference_url, gateway.http)
            pairs[name] = [straight, replace(straight, name=THROUGH, url=url)]
            bench.settle(pairs[name], ClosedLoop(TEXT_CLIENTS))
        some = [(LANGUAGE_ID, TEXT_CLIENTS), (bench.classifier, IMAGE_CLIENTS), (LANGUAGE_ID, 1)]
        comparisons = [Comparison(ClosedLoop(n), pairs[name], f"{name}, {ClosedLoop(n)}") for name, n in some]
        results = bench.measure(comparisons)
    for comparison in comparisons[:2]:
        yield results.row(f"{comparison}, /s", comparison, THROUGH, STRAIGHT)
    yield results.row(f"{comparisons[2]}, p50 in ms", comparisons[2], THROUGH, STRAIGHT, "p50_ms")
