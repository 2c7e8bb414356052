"""Reads what a server's own counters say of a run: the difference of two scrapes. Pure but for `scrape`.

GET /metrics -> parse -> Counters, before and after -> Counters.since -> ServerStatistics
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import requests

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\}\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# TorchServe's own series and the handlers' name the model differently.
MODEL_LABELS = ("ModelName", "model_name")
# Seconds to wait for the metrics port: five times the second that a handler's counters are old anyway.
SCRAPE_TIMEOUT_S = 5.0

REQUESTS, QUEUE_US = "ts_inference_requests_total", "ts_queue_latency_microseconds"
BATCH_SIZE = "handler_batch_size"
STAGES = ("decode", "wait", "forward", "encode")


@dataclass(frozen=True, slots=True)
class Counters:
    """One model's counters, summed over workers and versions.

    Attributes:
        values: (name, label `le` or "") -> value.
    """

    values: Mapping[tuple[str, str], float]

    @classmethod
    def parse(cls, text: str, model: str) -> "Counters":
        """Read Prometheus' text format; other models' series are left out."""
        values: defaultdict[tuple[str, str], float] = defaultdict(float)
        for line in text.splitlines():
            match = SAMPLE.match(line)
            if match is None:
                continue
            name, labels, value = match.groups()
            parsed = dict(LABEL.findall(labels))
            if any(parsed.get(label) == model for label in MODEL_LABELS):
                values[name, parsed.get("le", "")] += float(value)
        return cls(dict(values))

    def since(self, before: "Counters") -> "Counters":
        """Return what was added since an earlier scrape."""
        return Counters({key: value - before.values.get(key, 0.0) for key, value in self.values.items()})

    def get(self, name: str) -> float:
        """Return one counter; 0 where there is none."""
        return self.values.get((name, ""), 0.0)

    def buckets(self, name: str) -> dict[str, int]:
        """Return the counts of a histogram by upper bound, without the empty buckets."""
        bounds = [(float(le), le) for key, le in self.values if key == f"{name}_bucket"]
        counts, below = {}, 0.0
        for _, le in sorted(bounds):
            cumulative = self.values[f"{name}_bucket", le]
            if cumulative > below:
                counts[le] = round(cumulative - below)
            below = cumulative
        return counts


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """The server's own counts of a run, warm-up included.

    Attributes:
        queue_ms: mean ms of a request in TorchServe's queue; None where the server does not say.
        stages_ms: mean ms of decoding an item, of its wait for the engine, of a micro-batch in the engine (`forward`),
            and of encoding an answer.
        micro_batches: most items of a bucket, as the handler has it -> number of micro-batches in it.
        mean_batch_size: mean number of items of a micro-batch; None where the handler does not say.
    """

    queue_ms: float | None
    stages_ms: dict[str, float]
    micro_batches: dict[str, int]
    mean_batch_size: float | None

    @classmethod
    def of(cls, added: Counters) -> "ServerStatistics":
        """Read off the difference of two scrapes."""

        def mean(total: str, count: str, unit: float) -> float | None:
            return added.get(total) / added.get(count) * unit if added.get(count) else None

        stages = {name: mean(f"handler_{name}_seconds_sum", f"handler_{name}_seconds_count", 1e3) for name in STAGES}
        return cls(
            queue_ms=mean(QUEUE_US, REQUESTS, 1e-3),
            stages_ms={name: value for name, value in stages.items() if value is not None},
            micro_batches=added.buckets(BATCH_SIZE),
            mean_batch_size=mean(f"{BATCH_SIZE}_sum", f"{BATCH_SIZE}_count", 1),
        )


def scrape(metrics_url: str, model: str) -> Counters | None:
    """Read a model's counters; None where nothing answers at the address."""
    with requests.Session() as session:
        session.trust_env = False
        try:
            response = session.get(f"{metrics_url}/metrics", timeout=SCRAPE_TIMEOUT_S)
        except requests.RequestException:
            return None
    return Counters.parse(response.text, model) if response.ok else None
