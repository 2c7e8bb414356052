"""What the nodes serve, as they were asked last. Plain data.

Fleet
├── nodes: Node and whether it is draining
├── registered: Model -> Version -> Replica, one for each node that has it
├── withdrawn: versions of them that get no new requests
└── canaries: the share of a model's traffic that another version gets
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.gateway.settings import Canary
from deploy.run.node import Node


@dataclass(frozen=True, slots=True)
class Replica:
    """One version of a model on one node."""

    # How many there should be, and how many are READY.
    workers: int
    ready_workers: int
    batch_size: int
    max_batch_delay_ms: int
    # Whether requests that name no version are its own on that node.
    is_default: bool
    # Whether the node has started again and does not have it back yet.
    is_missing: bool = False
    # What is no reason to configure Envoy anew: it differs after a registration or a worker's restart, a worker's last
    # process by its id, how often another was seen, and TorchServe's queue (None: the node does not answer).
    generation: tuple[str, ...] = field(default=(), compare=False)
    processes: Mapping[str, int] = field(default_factory=dict, compare=False)
    restarts: int = field(default=0, compare=False)
    queued: int | None = field(default=None, compare=False)

    @property
    def is_ready(self) -> bool:
        """Whether it has a worker that is READY: a second one of an adaptive model never is."""
        return self.ready_workers > 0


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a model, with its replicas by the name of the node."""

    version: str
    replicas: Mapping[str, Replica]
    # What its handler says of itself (`handlers.protocol.metadata`); None until one has answered.
    metadata: Mapping[str, Any] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it has replicas, and each has a worker that is READY."""
        return bool(self.replicas) and all(replica.is_ready for replica in self.replicas.values())


@dataclass(frozen=True, slots=True)
class Model:
    """One name that requests may ask for, with its versions."""

    name: str
    versions: Mapping[str, Version]
    # The version of requests that name none: that of most nodes; None where no node has one.
    default: str | None = None

    def find(self, asked: str) -> str | None:
        """Find a version: the very one, or for "1" the one that is "1.0" (or "1.0.0"), as Triton's clients name it."""
        if asked in self.versions:
            return asked
        wanted = plain(asked)
        found = [version for version in self.versions if plain(version) == wanted]
        return found[0] if len(found) == 1 else None


def plain(version: str) -> str:
    """Return a version without its trailing zeros, as Triton's clients name it: "1" of "1.0" and "1.0.0"."""
    while version.endswith(".0"):
        version = version.removesuffix(".0")
    return version


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything behind the gateway; nodes, models and canaries are by name."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()
    registered: Mapping[str, Model] = field(default_factory=dict)
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    is_up: bool = False
    # Why gateway.yaml cannot be applied; whether so no request may reach a node; and the files that Envoy rejects.
    unapplied: str = ""
    is_shut: bool = False
    rejected: frozenset[str] = frozenset()

    @property
    def problem(self) -> str:
        """Why the gateway does not work as configured; "" if it does."""
        shut = "; every inference gets 503, since keys may have changed" if self.is_shut else ""
        files = ", ".join(sorted(self.rejected))
        rejected = f"Envoy has not accepted {files} (envoy.log) and serves what it accepted before" if files else ""
        return "; ".join(filter(None, (self.unapplied, rejected))) + shut

    @property
    def models(self) -> dict[str, Model]:
        """What clients may ask for, by name: the versions that are not withdrawn, and the default if it is one."""
        found = {}
        for name, model in self.registered.items():
            versions = {
                number: version for number, version in model.versions.items() if (name, number) not in self.withdrawn
            }
            if versions:
                found[name] = Model(name, versions, model.default if model.default in versions else None)
        return found

    @property
    def is_ready(self) -> bool:
        """Whether a node answers, and every version has a READY worker on a node that is not draining.

        Nothing registered at all is ready.
        """
        return (
            self.is_up
            and not self.problem
            and all(
                any(replica.is_ready for node, replica in version.replicas.items() if node not in self.draining)
                for model in self.models.values()
                for version in model.versions.values()
            )
        )
