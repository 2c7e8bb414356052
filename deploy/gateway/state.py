"""The models on the nodes, as last polled. Plain data.

Fleet
├── nodes, and those that drain
├── registered: ServedModel -> ServedVersion -> Placement, one for each node that has it
├── withdrawn: versions that receive no new requests
└── canaries: versions that receive a share of a model's requests
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deploy.gateway.settings import Canary
from deploy.nodes.run.node import Node
from deploy.protocol.description import strip_zeros
from torchserve_client.payloads import Json


@dataclass(frozen=True, slots=True)
class Placement:
    """One version of a model on one node. Fields without comparison never change Envoy's configuration."""

    workers: int  # configured workers
    ready_workers: int
    batch_size: int
    max_batch_delay_ms: int
    is_default: bool  # whether it is the node's default version
    is_missing: bool = False  # whether the node has restarted and not restored it yet
    lost: str = ""  # why the node will not restore it by itself; "" if it may
    # Differs after a registration or a worker's restart.
    generation: tuple[str, ...] = field(default=(), compare=False)
    processes: Mapping[str, int] = field(default_factory=dict, compare=False)  # worker -> its last process id
    restarts: int = field(default=0, compare=False)
    was_ready: bool = field(default=False, compare=False)  # whether it has been READY since its registration
    # Whether its handler rejects the question for metadata: another project's.
    is_foreign: bool = field(default=False, compare=False)
    space: str = field(default="", compare=False)  # the identity of its vectors; "" if it has none, or is not known yet
    # Requests in TorchServe's queue; None if the node does not answer.
    queued: int | None = field(default=None, compare=False)

    @property
    def is_ready(self) -> bool:
        """Whether a worker is READY; a second worker of an adaptive model never is."""
        return self.ready_workers > 0


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """One version of a model, with its placements by the name of the node."""

    version: str
    placements: Mapping[str, Placement]
    # The handler's metadata (`handlers.protocol.metadata`); None before its first response.
    metadata: Json | None = None
    spaces: Mapping[str, str] = field(default_factory=dict)  # node -> the identity of its vectors
    space: str = ""  # only nodes of this one receive requests; "" for all nodes

    def is_left_out(self, node: str) -> bool:
        """Whether a node receives no requests, since its vectors are of another space or not known yet."""
        return bool(self.space) and self.spaces.get(node) != self.space

    @property
    def is_ready(self) -> bool:
        return bool(self.placements) and all(placement.is_ready for placement in self.placements.values())

    @property
    def lost(self) -> str:
        """Why no node will restore it; "" if one may."""
        reasons = [placement.lost for placement in self.placements.values()]
        return reasons[0] if reasons and all(reasons) else ""


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    versions: Mapping[str, ServedVersion]
    # The default version on most nodes, for requests without a version; None if no node has one.
    default: str | None = None

    @property
    def metadata(self) -> Json:
        """The handler's metadata, of any version that has reported it; empty without one."""
        return next((each.metadata for each in self.versions.values() if each.metadata), {})

    def find(self, version: str) -> str | None:
        """Find a version by its name, or "1.0" (or "1.0.0") by Triton's short name "1"."""
        if version in self.versions:
            return version
        short = strip_zeros(version)
        found = [each for each in self.versions if strip_zeros(each) == short]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes and models behind the gateway; nodes, models and canaries are by name."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    draining: frozenset[str] = frozenset()
    registered: Mapping[str, ServedModel] = field(default_factory=dict)
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    is_up: bool = False  # whether a node answers
    unapplied: str = ""  # why gateway.yaml cannot be applied
    is_shut: bool = False  # whether no request may reach a node, since keys may have changed
    rejected: frozenset[str] = frozenset()  # the files that Envoy rejects
    # Digests of `client_ca`: of new connections, and of those that Envoy accepted before, until it has the new one.
    authorities: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Why the gateway does not work as configured; "" if it does."""
        shut = "; every inference gets 503, since keys may have changed" if self.is_shut else ""
        files = ", ".join(sorted(self.rejected))
        rejected = f"Envoy has not accepted {files} (envoy.log) and uses the previous configuration" if files else ""
        return "; ".join(filter(None, (self.unapplied, rejected))) + shut

    @property
    def models(self) -> dict[str, ServedModel]:
        """The models that clients may request, without withdrawn versions."""
        found = {}
        for name, model in self.registered.items():
            versions = {key: version for key, version in model.versions.items() if (name, key) not in self.withdrawn}
            if versions:
                found[name] = ServedModel(name, versions, model.default if model.default in versions else None)
        return found

    @property
    def is_ready(self) -> bool:
        """Whether a node answers and every version that was once READY is ready, except lost ones: they may never be.

        A fleet without models is ready.
        """
        known = (version for model in self.models.values() for version in model.versions.values())
        versions = [version for version in known if not version.lost]
        counted = [each for each in versions if any(one.was_ready or one.is_ready for one in each.placements.values())]
        is_started = bool(counted) or not versions
        return self.is_up and not self.problem and is_started and all(map(self.is_version_ready, counted))

    def is_version_ready(self, version: ServedVersion) -> bool:
        """Return whether a version has a READY worker on a node that does not drain."""
        out = {node for node in version.placements if node in self.draining or version.is_left_out(node)}
        return any(placement.is_ready for node, placement in version.placements.items() if node not in out)


def choose_spaces(
    models: Mapping[str, ServedModel],
    wanted: Literal["one"] | Mapping[str, str] | None,
    former: Collection[tuple[str, str, str]],
) -> dict[str, ServedModel]:
    """Give each version the space of its requests: a named one; or the former one until no node has it."""

    def choose(model: str, version: ServedVersion) -> str:
        if wanted != "one":
            return (wanted or {}).get(model, "")
        known = Counter(version.spaces.values())
        kept = [space for name, number, space in former if (name, number) == (model, version.version)]
        return next((space for space in kept if space in known), max(known, key=known.__getitem__, default=""))

    def pin(model: str, version: ServedVersion) -> ServedVersion:
        if not (space := choose(model, version)):
            return version
        return replace(version, space=space, metadata=version.metadata and {**version.metadata, "vector_space": space})

    return {
        name: replace(model, versions={number: pin(name, each) for number, each in model.versions.items()})
        for name, model in models.items()
    }
