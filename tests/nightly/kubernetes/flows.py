"""What NetworkPolicies let through, read as Kubernetes' documentation has it, for pods and ports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.nightly.kubernetes.rendered import Object, of_kind

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Pod:
    """A pod, as policies see it.

    Attributes:
        labels: its own.
        namespace: the labels of its namespace; the name is one of them.
        address: where it is no pod of the cluster, its address.
    """

    labels: Labels
    namespace: Labels
    address: str | None = None


def namespace(name: str, **labels: str) -> Labels:
    """Labels of a namespace: every one has its name as a label."""
    return {"kubernetes.io/metadata.name": name, **labels}


def is_let(objects: Sequence[Object], source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out of one pod and into the other."""
    return _side(objects, "Egress", source, target, (port, protocol)) and _side(
        objects, "Ingress", target, source, (port, protocol)
    )


def is_let_in(objects: Sequence[Object], source: Pod, target: Pod, port: int) -> bool:
    """Whether a pod takes a connection, whatever the other's own policies say."""
    return _side(objects, "Ingress", target, source, (port, "TCP"))


def matches(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a selector, of matchLabels alone, selects what has these labels."""
    assert set(selector) <= {"matchLabels"}
    return dict(selector.get("matchLabels", {})).items() <= dict(labels).items()


def _side(objects: Sequence[Object], kind: str, own: Pod, other: Pod, port: tuple[int, str]) -> bool:
    """Whether policies of a pod let another in (Ingress), or the pod out to it (Egress); no policy lets all."""
    policies = [
        each["spec"]
        for each in of_kind(objects, "NetworkPolicy")
        if kind in each["spec"]["policyTypes"]
        and each["metadata"]["namespace"] == own.namespace.get("kubernetes.io/metadata.name")
        and matches(each["spec"]["podSelector"], own.labels)
    ]
    if not policies:
        return True
    rules = [rule for policy in policies for rule in policy.get(kind.lower(), [])]
    peers = "from" if kind == "Ingress" else "to"
    return any(port in _ports(rule) and any(_is_peer(peer, own, other) for peer in rule[peers]) for rule in rules)


def _ports(rule: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [(each["port"], each["protocol"]) for each in rule["ports"]]


def _is_peer(peer: Mapping[str, Any], own: Pod, other: Pod) -> bool:
    if "ipBlock" in peer:
        if other.address is None:
            return False
        block = peer["ipBlock"]
        excepted = [cidr.removesuffix("/32") for cidr in block.get("except", [])]
        return other.address not in excepted and block["cidr"] in (f"{other.address}/32", "0.0.0.0/0")
    if other.address is not None:
        return False
    is_namespace = (
        matches(peer["namespaceSelector"], other.namespace)
        if "namespaceSelector" in peer
        else own.namespace == other.namespace
    )
    return is_namespace and matches(peer.get("podSelector", {}), other.labels)
