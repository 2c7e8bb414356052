"""The network policies of deploy/kubernetes let through what is needed and nothing else."""

import pytest

from tests.nightly.kubernetes.described import EDGE, HERE, NODE, RUN_ON
from tests.nightly.kubernetes.flows import Pod, is_let, is_let_in, namespace
from tests.nightly.kubernetes.rendered import (
    component,
    overlay,
)

pytestmark = pytest.mark.kubectl

PEERS = {
    "a client that was let in": Pod({}, namespace("shop", **{"torchserve/clients": "allowed"})),
    "a client that was not": Pod({}, namespace("other")),
    "a job": Pod({"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "client"}, HERE),
    "a pod of the namespace": Pod({"app.kubernetes.io/name": "something"}, HERE),
    "an edge": Pod(EDGE, HERE),
    "a node": Pod(NODE, HERE),
    "Prometheus": Pod({"app.kubernetes.io/name": "prometheus"}, namespace("monitoring")),
    "a pod beside Prometheus": Pod({"app.kubernetes.io/name": "grafana"}, namespace("monitoring")),
}
OUTSIDE = Pod({}, {}, "203.0.113.7")


def test_policies_let_through_what_is_needed_and_nothing_else() -> None:
    wanted = {
        ("a client that was let in", "an edge", 8000), ("a client that was let in", "an edge", 8001),
        ("a job", "an edge", 8000), ("a job", "an edge", 8001),
        ("an edge", "a node", 8085),
        ("Prometheus", "an edge", 8002), ("Prometheus", "a node", 8085),
    }  # fmt: skip
    ports = (53, 443, 8000, 8001, 8002, 8003, 8080, 8081, 8082, 8085)
    targets = ("an edge", "a node", "a job", "a pod of the namespace")
    for name in RUN_ON:
        let = {
            (source, target, port)
            for source in PEERS
            for target in targets
            for port in ports
            if is_let(overlay(name), PEERS[source], PEERS[target], port)
        }
        assert let == wanted


def test_nodes_and_the_control_port_let_nobody_else_in_who_may_leave_its_own_pod() -> None:
    objects = overlay("cpu")
    assert {name for name, pod in PEERS.items() if is_let_in(objects, pod, PEERS["a node"], 8085)} == {
        "an edge", "Prometheus",
    }  # fmt: skip
    assert not any(is_let_in(objects, pod, PEERS["an edge"], 8003) for pod in PEERS.values())


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_edges_and_jobs_reach_dns_and_nodes_reach_nothing(protocol: str) -> None:
    objects = overlay("cpu")
    dns = Pod({"k8s-app": "kube-dns"}, namespace("kube-system"))
    local = Pod({}, {}, "169.254.20.10")
    for server in (dns, local):
        assert is_let(objects, PEERS["an edge"], server, 53, protocol)
        assert is_let(objects, PEERS["a job"], server, 53, protocol)
        assert not is_let(objects, PEERS["a node"], server, 53, protocol)
    for source in ("an edge", "a node", "a job"):
        assert not is_let(objects, PEERS[source], OUTSIDE, 443)


def test_nodes_that_fetch_reach_the_store_and_not_the_machines_own_role() -> None:
    objects = component("models-fetch")
    assert is_let(objects, PEERS["a node"], OUTSIDE, 443)
    assert not is_let(objects, PEERS["a node"], OUTSIDE, 80)
    assert not is_let(objects, PEERS["a node"], Pod({}, {}, "169.254.169.254"), 443)
    assert not is_let(objects, PEERS["an edge"], OUTSIDE, 443)


# -- overlays and components ---------------------------------------------------------------------------------------
