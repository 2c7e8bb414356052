"""What Envoy is told, as plain data; and whether it would take it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.gateway.envoy import files
from deploy.gateway.envoy.bootstrap import bootstrap
from deploy.gateway.envoy.clusters import Tokens, clusters, endpoints, served
from deploy.gateway.envoy.errors import answers, retry_after_s
from deploy.gateway.envoy.keys import bucket
from deploy.gateway.envoy.listeners import listeners
from deploy.gateway.envoy.process import find
from deploy.gateway.envoy.routes import GRPC, HTTP, routes
from deploy.gateway.settings import Key, Limits, Ports, Settings, Tls
from deploy.gateway.state import Canary, Fleet, Model, Replica, Version
from deploy.nodes.node import Node

REPLICA = Replica(workers=1, ready_workers=1, batch_size=8, max_batch_delay_ms=1, is_default=True)


def node(name: str, host: str = "127.0.0.1", token_file: str | None = None) -> Node:
    def url(port: int) -> str:
        return f"http://{host}:{port}"

    return Node(name=name, inference=url(8080), management=url(8081), metrics=url(8082), token_file=token_file)


def model(name: str, versions: dict[str, list[str]]) -> Model:
    found = {version: Version(version, dict.fromkeys(nodes, REPLICA)) for version, nodes in versions.items()}
    return Model(name, found, next(iter(found), None))


def fleet(*nodes: Node, **models: dict[str, list[str]]) -> Fleet:
    by_name = {name: model(name, versions) for name, versions in models.items()}
    return Fleet(nodes={node.name: node for node in nodes}, models=by_name)


def test_served_names_each_model_and_each_version_with_its_own_nodes() -> None:
    state = fleet(node("a"), node("b"), m={"1.0": ["a", "b"], "2.0": ["b", "gone"]}, empty={})
    assert [(each.cluster, each.nodes, each.file) for each in served(state)] == [
        ("empty", (), "endpoints/empty.json"),
        ("m", ("a", "b"), "endpoints/m.json"),
        ("m/1.0", ("a", "b"), "endpoints/m%2F1.0.json"),
        ("m/2.0", ("b",), "endpoints/m%2F2.0.json"),
    ]


def test_endpoints_have_state_address_and_tokens_of_their_node() -> None:
    state = fleet(node("a"), node("b", "b.example"), node("c", "[::1]"), m={"1.0": ["a", "b", "c"]})
    state = Fleet(nodes=state.nodes, models=state.models, draining=frozenset({"c"}))
    each = next(iter(served(state)))
    addresses = {"127.0.0.1": "127.0.0.1", "::1": "::1"}
    made = endpoints(state, each, addresses.get, {"a": Tokens("i", "m"), "b": Tokens("x", "y")})
    found = made["endpoints"][0]["lb_endpoints"]
    assert [
        (
            each["endpoint"]["hostname"],
            each["endpoint"]["address"]["socket_address"],
            each["health_status"],
            each.get("metadata"),
        )
        for each in found
    ] == [
        (
            "a",
            {"address": "127.0.0.1", "port_value": 8080},
            "UNKNOWN",
            {"filter_metadata": {"torchserve.tokens": {"inference": "Bearer i", "management": "Bearer m"}}},
        ),
        ("c", {"address": "::1", "port_value": 8080}, "DRAINING", None),
    ]


def matches(state: Fleet, listener: str) -> list[str]:
    made = routes(Settings(), state, listener)["virtual_hosts"][0]["routes"]
    kinds = ("path", "safe_regex", "prefix", "path_separated_prefix")
    found = []
    for route in made:
        (kind,) = (kind for kind in kinds if kind in route["match"])
        value = route["match"][kind]
        target = route["route"]["cluster"] if "route" in route else route["direct_response"]["status"]
        found.append(f"{value['regex'] if kind == 'safe_regex' else value} -> {target}")
    return found


def test_a_version_that_another_could_be_taken_for_has_its_own_name_alone() -> None:
    assert matches(fleet(node("a"), m={"1": ["a"], "1.0": ["a"]}), GRPC)[:3] == [
        "/predictions/m/1 -> m/1",
        "/predictions/m/1.0 -> m/1.0",
        "/predictions/m -> m",
    ]


def test_the_last_route_of_both_is_nothing() -> None:
    for listener in (HTTP, GRPC):
        assert matches(fleet(), listener)[-1] == "/ -> 404"


@pytest.mark.parametrize(
    ("canary", "count"),
    [
        (None, 0),
        (Canary("2.0", 5.5), 1),
        (Canary("2.0", 0), 0),
        (Canary("2.0", 0, ("X-A", "b")), 1),
        (Canary("2.0", 50, ("X-A", "b")), 2),
        (Canary("gone", 50), 0),
    ],
)
def test_a_canary_stands_before_the_default(canary: Canary | None, count: int) -> None:
    state = fleet(node("a"), m={"1.0": ["a"], "2.0": ["a"]})
    state = Fleet(nodes=state.nodes, models=state.models, canaries={"m": canary} if canary else {})
    made: list[Any] = routes(Settings(), state, GRPC)["virtual_hosts"][0]["routes"]
    targets = [route["route"]["cluster"] for route in made if route["match"].get("path") == "/predictions/m"]
    assert targets == ["m/2.0"] * count + ["m"]
    shares = [route["match"]["runtime_fraction"] for route in made if "runtime_fraction" in route["match"]]
    assert [share["default_value"]["numerator"] for share in shares] == (
        [round(canary.percent * 10_000)] if canary and canary.percent and canary.version == "2.0" else []
    )


@pytest.mark.parametrize(
    ("rate", "burst", "expected", "retry_s"),
    [
        (10.0, None, (10, 10, "1.000s"), 1),
        (10.0, 50, (50, 10, "1.000s"), 1),
        (0.5, None, (1, 1, "2.000s"), 2),
        (2.5, None, (3, 2, "0.800s"), 1),
        (0.01, 3, (3, 1, "100.000s"), 100),
    ],
)
def test_a_bucket_has_the_rate_that_was_set(
    rate: float, burst: int | None, expected: tuple[int, int, str], retry_s: int
) -> None:
    key = Key(client="a", key="k" * 16, requests_per_second=rate, burst=burst)
    made = bucket(key)
    assert (made["max_tokens"], made["tokens_per_fill"], made["fill_interval"]) == expected
    assert retry_after_s(key) == retry_s


@pytest.mark.parametrize("unresponsive_s", [1.0, 5.0, 60.0])
def test_a_node_that_is_cut_off_is_left_in_the_time_that_was_set(unresponsive_s: float) -> None:
    state = fleet(node("a"), m={"1.0": ["a"]})
    _, made, _ = clusters(Settings(limits=Limits(unresponsive_s=unresponsive_s)), state)
    (check,) = made["health_checks"]
    interval_s, timeout_s = (float(check[name].rstrip("s")) for name in ("interval", "timeout"))
    assert check["unhealthy_threshold"] * interval_s + timeout_s == pytest.approx(unresponsive_s, abs=0.01)
    keepalive = made["upstream_connection_options"]["tcp_keepalive"]
    probed_s = keepalive["keepalive_time"] + keepalive["keepalive_probes"] * keepalive["keepalive_interval"]
    assert probed_s <= max(2, unresponsive_s)
    (option,) = made["upstream_bind_config"]["socket_options"]
    assert option["int_value"] == unresponsive_s * 1000


def test_answers_name_limits_and_each_status_once() -> None:
    made = {
        answer.status: answer.message for answer in answers(Settings(limits=Limits(body_bytes=12345, header_s=7.0)))
    }
    assert len(made) == len(answers(Settings()))
    assert "12345" in made[413]
    assert "7 s" in made[408]


def test_tokens_are_read_and_a_file_that_is_none_is_passed_over(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"inference": {"key": "i"}, "management": {"key": "m"}}')
    bad.write_text("{}")
    nodes = [
        node("a", token_file=str(good)),
        node("b", token_file=str(bad)),
        node("c", token_file=str(tmp_path / "no")),
    ]
    assert files.read_tokens({each.name: each for each in [*nodes, node("d")]}) == {"a": Tokens("i", "m")}


def test_addresses_are_found_by_name_and_none_is_none() -> None:
    assert [files.lookup(host) for host in ("10.1.2.3", "::1")] == ["10.1.2.3", "::1"]
    assert files.lookup("localhost") in ("127.0.0.1", "::1")
    assert files.lookup("nobody.invalid") is None


MODELS: dict[str, dict[str, list[str]]] = {"m-1_x.y": {"1.0": ["a", "b"], "2.0": ["b"]}, "n": {"1": ["a"]}}
WHOLE = fleet(node("a", token_file=str(Path("none"))), node("b"), **MODELS)
TLS = Tls(certificate="certificate.pem", key="key.pem")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(tls=TLS),
        Settings(tls=Tls(certificate="a.pem", key="b.pem", client_ca="c.pem")),
        Settings(ports=Ports(address="::", internal_address="::1")),
        Settings(management=True, keys=(Key(client="a", key="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),)),
        Settings(keys=tuple(Key(client=f"c{n}", key=f"{n:020}", requests_per_second=10.0**n) for n in range(-6, 7))),
        Settings(
            keys=(Key(client="a", key="a" * 16, requests_per_second=1e-6, burst=1), Key(client="b", key="b" * 16))
        ),
        Settings(limits=Limits(body_bytes=1, form_bytes=1, header_bytes=1024, headers=10, connections=1, attempts=1)),
        Settings(
            limits=Limits(body_bytes=1 << 30, form_bytes=1 << 20, header_bytes=96 << 10, headers=1000, attempts=10)
        ),
        Settings(
            limits=Limits(
                header_s=86400,
                body_s=86400,
                idle_s=86400,
                response_s=86400,
                attempt_connect_s=86400,
                unresponsive_s=86400,
            )
        ),
        Settings(
            limits=Limits(
                header_s=0.01, body_s=0.01, idle_s=0.01, response_s=0.01, attempt_connect_s=0.01, unresponsive_s=0.01
            )
        ),
    ],
)
def test_envoy_takes_what_any_settings_make(settings: Settings, tmp_path: Path) -> None:
    """Everything in one file, since `--mode validate` reads no other."""
    state = Fleet(nodes=WHOLE.nodes, models=WHOLE.models, canaries={"n": Canary("1", 33.3, ("X-A", "b"))})
    whole = bootstrap(settings)
    del whole["dynamic_resources"]
    whole["static_resources"] = {"clusters": clusters(settings, state), "listeners": listeners(settings)}
    for listener in whole["static_resources"]["listeners"]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["route_config"] = routes(settings, state, manager.pop("rds")["route_config_name"])
        del manager["route_config"]["@type"]
    for resource in [*whole["static_resources"]["clusters"], *whole["static_resources"]["listeners"]]:
        del resource["@type"]
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    files.write(settings, state, tmp_path)
    command = [find(), "-c", "whole.json", "--mode", "validate", "--disable-hot-restart", "--log-level", "warning"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
