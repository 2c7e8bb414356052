"""The handlers' counters, and the text of /metrics: TorchServe's names, labels and format."""

import socket
from collections.abc import Sequence
from typing import NamedTuple

# The labels that each sample has, besides its own.
MODEL = ("ModelName", "ModelVersion")


class Series(NamedTuple):
    """The samples of one counter."""

    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Add to the sample of these labels. Only the reporter's thread calls it."""
        self.samples[tuple(labels)] = self.samples.get(tuple(labels), 0.0) + value


class Metrics(dict[str, Series]):
    """A handler's counters; it has the interface of TorchServe's metrics cache."""

    def get_metric(self, name: str, kind: object) -> Series:  # noqa: ARG002
        """Return the counter of a name."""
        if name not in self:
            from handlers.metrics import COUNTERS  # noqa: PLC0415

            (own,) = {counter.labels for counter in COUNTERS if counter.name == name}
            self[name] = Series((*MODEL, *own), {})
        return self[name]

    def text(self) -> str:
        """Return all counters in Prometheus' text format."""
        host, lines = socket.gethostname(), []
        for name, series in sorted([*self.items()]):
            lines += [f"# HELP {name} Torchserve prometheus counter metric with unit: count", f"# TYPE {name} counter"]
            for labels, value in [*series.samples.items()]:
                named = zip((*series.labels, "Hostname"), (*labels, host), strict=True)
                written = ",".join(f'{label}="{_escape(text)}"' for label, text in named)
                lines.append(f"{name}{{{written},}} {float(value)}")
        return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
