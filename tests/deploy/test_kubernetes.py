"""deploy/kubernetes as YAML, without kubectl: rights and allowed connections; and a node's settings and readiness."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.models import ROOT
from deploy.nodes.container.node import summarize_health
from deploy.nodes.container.settings import PORT, NodeSettings
from handlers.errors import InvalidConfig
from tests.tables import table
from torchserve_client.cli import parser

KUBERNETES = ROOT / "deploy" / "kubernetes"
ROLE = "app.kubernetes.io/component"
OF_POD = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
NONE = {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": {"drop": ["ALL"]}}
OF_CONTAINER = {**NONE, "readOnlyRootFilesystem": True}
OF_VOLUMES = {"runAsGroup": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
Peer = tuple[Mapping[str, str], str]
# Labels and namespace; an address outside has none.
NAME = "app.kubernetes.io/name"
PEERS: dict[str, Peer] = {
    **{role: ({NAME: "torchserve", ROLE: role}, "torchserve") for role in ("edge", "node", "host", "client")},
    **{name: ({NAME: name}, "monitoring") for name in ("prometheus", "grafana")},
    "another pod": ({NAME: "something"}, "torchserve"),
    "an allowed namespace": ({}, "shop"),
    "another namespace": ({}, "other"),
}


def objects() -> list[dict[str, Any]]:
    return [each for path in sorted(KUBERNETES.rglob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def below(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from below(each)


def test_containers_have_a_read_only_root_and_no_rights_and_no_patch_gives_them_any() -> None:
    allowed, wholes = {**OF_POD, **OF_CONTAINER, **OF_VOLUMES}, 0
    for each in below(objects()):
        context = each.get("securityContext", {})
        assert context.items() <= allowed.items(), each
        for container in [*each.get("initContainers", []), *each.get("containers", [])]:
            # A patch contains only its changes.
            if "args" in container or "command" in container:
                wholes += 1
                assert container["securityContext"].items() >= OF_CONTAINER.items(), container["name"]
        if "restartPolicy" in each or "serviceAccountName" in each:
            assert context.items() >= OF_POD.items()
    assert wholes == 7


def test_nodes_are_unready_in_half_a_minute_alerts_those_of_prometheus_and_the_job_the_clients() -> None:
    probes = [each["readinessProbe"] for each in below(objects()) if "readinessProbe" in each]
    assert len(probes) >= 2 and all(each["failureThreshold"] * each.get("periodSeconds", 10) <= 30 for each in probes)
    rules = (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml")
    originals = [group for path in rules for group in yaml.safe_load(path.read_text())["groups"]]
    copies = [each for found in objects() if found.get("kind") == "PrometheusRule" for each in found["spec"]["groups"]]
    assert sorted(copies, key=str) == sorted(originals, key=str)
    job = yaml.safe_load((KUBERNETES / "jobs" / "bulk-scoring.yaml").read_text(encoding="utf-8"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    options = parser().parse_args(container["args"][1:])
    assert (options.command, str(options.path), str(options.out)) == ("predict", "/inputs", "/answers/answers.jsonl")


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return dict(selector.get("matchLabels", {})).items() <= dict(labels).items()


def is_peer(peer: Mapping[str, Any], own: Peer, other: Peer) -> bool:
    if "ipBlock" in peer:
        return False
    allowed = {"torchserve/clients": "allowed"} if other[1] == "shop" else {}
    labels = {"kubernetes.io/metadata.name": other[1], **allowed}
    is_there = matches(peer["namespaceSelector"], labels) if "namespaceSelector" in peer else own[1] == other[1]
    return is_there and matches(peer.get("podSelector", {}), other[0])


def is_let(policies: Sequence[Mapping[str, Any]], kind: str, own: Peer, other: Peer, port: int) -> bool:
    """Whether policies of a pod let another in (Ingress), or the pod out to it (Egress); no policy lets all."""
    specs = [each["spec"] for each in policies if kind in each["spec"]["policyTypes"]]
    own_ones = [spec for spec in specs if own[1] == "torchserve" and matches(spec["podSelector"], own[0])]
    rules = [rule for spec in own_ones for rule in spec.get(kind.lower(), [])]
    of_port = [rule for rule in rules if port in [each["port"] for each in rule["ports"]]]
    peers = [peer for rule in of_port for peer in rule["from" if kind == "Ingress" else "to"]]
    return not own_ones or any(is_peer(peer, own, other) for peer in peers)


def test_network_policies_let_through_what_is_needed_and_nothing_else() -> None:
    policies = [each for each in objects() if each.get("kind") == "NetworkPolicy"]
    let = {
        (source, target, port)
        for source, own in PEERS.items()
        for target in ("edge", "node", "host", "client", "another pod", "another namespace")
        for port in (53, 443, 8000, 8001, 8002, 8003, 8004, 8080, 8081, 8082, PORT)
        if "torchserve" in (own[1], PEERS[target][1])
        and is_let(policies, "Egress", own, PEERS[target], port)
        and is_let(policies, "Ingress", PEERS[target], own, port)
    }
    clients = {(source, "edge", port) for source in ("an allowed namespace", "client") for port in (8000, 8001)}
    clients |= {("an allowed namespace", "host", port) for port in (8080, 8081)} | {("prometheus", "host", 8080)}
    assert let == clients | {("edge", "node", PORT), ("prometheus", "edge", 8002), ("prometheus", "node", PORT)}
    # Only a node that fetches its archives has egress, and never to the machine's metadata service.
    egress = {each["metadata"]["name"]: each["spec"].get("egress", []) for each in policies}
    assert egress["torchserve-node"] == []
    assert egress["torchserve-fetch"][0]["to"] == [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}}]


def test_variables_replace_defaults() -> None:
    given = {"NODE_CONFIG": "/my.properties", "NODE_PORT": "9085", "NODE_FORWARD_HEADERS": "X-A,X-B"}
    settings = NodeSettings.read(given | {"NODE_NOTICE_S": "2"})
    assert (settings.config, settings.port, settings.forward_headers) == (Path("/my.properties"), 9085, ("X-A", "X-B"))
    assert (settings.model_store, settings.notice_s) == (None, 2.0)
    with pytest.raises(InvalidConfig, match="environment: port: "):
        NodeSettings.read({"NODE_PORT": "many"})


def described(ready: int, workers: int, timeout_s: int = 120) -> dict[str, Any]:
    states = [{"status": "READY" if each < ready else "UNLOADING"} for each in range(max(ready, workers))]
    model = {"modelName": "m", "modelVersion": "1.0", "minWorkers": workers}
    return {**model, "responseTimeout": timeout_s, "workers": states}


@table(
    ([], "ready"),
    ([described(1, 1, 90), described(2, 2, 30)], "ready"),
    ([described(1, 1), described(1, 2)], "ready"),
    ([described(1, 1), described(0, 2)], "m 1.0: no worker is READY"),
    # Scaled to none it answers no one.
    ([described(0, 0)], "m 1.0: no worker is READY"),
)
def test_node_is_ready_where_a_worker_of_every_model_is(models: list[dict[str, Any]], words: str) -> None:
    assert summarize_health(models) == (words, max([each["responseTimeout"] for each in models], default=0))
