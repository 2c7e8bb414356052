"""Envoy's configuration as plain data; and whether Envoy takes it."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.gateway.envoy import files
from deploy.gateway.envoy.clusters import Upstream, make_clusters, make_endpoints
from deploy.gateway.envoy.listeners import bootstrap, make_bucket, make_listeners
from deploy.gateway.envoy.process import find_program
from deploy.gateway.envoy.routes import make_routes
from deploy.gateway.settings import Canary, GatewaySettings, Key, Limits, Ports, Tls
from deploy.gateway.state import Fleet, ServedModel, ServedVersion
from deploy.run.node import Node
from tests.deploy.gateway.envoy.harness import REPLICA


def node(name: str, host: str = "127.0.0.1", token_file: str | None = None) -> Node:
    inference, management, metrics = (f"http://{host}:{port}" for port in (8080, 8081, 8082))
    return Node(name=name, inference=inference, management=management, metrics=metrics, token_file=token_file)


VERSIONS = {
    version: ServedVersion(version, dict.fromkeys(on, REPLICA)) for version, on in (("1.0", "ab"), ("2.0", "bc"))
}
MODELS = {"m-1_x.y": ServedModel("m-1_x.y", VERSIONS, "1.0")}
NODES = {"a": node("a", token_file="none"), "b": node("b", "[::1]")}  # noqa: S106
FLEET = Fleet(nodes=NODES, registered=MODELS, canaries={"m-1_x.y": Canary("2.0", 33.3, ("X-A", "b"))})


@pytest.mark.parametrize(
    ("missing", "version", "status"),
    [
        ("", None, "UNKNOWN"),
        ("1", None, "UNKNOWN"),
        ("12", None, "DRAINING"),
        ("1", "1.0", "DRAINING"),
        ("1", "2.0", "UNKNOWN"),
    ],
)
def test_node_that_lacks_a_version_is_left_by_that_version_and_without_any_by_the_model(
    missing: str, version: str | None, status: str
) -> None:
    versions = {
        name: ServedVersion(name, {"a": replace(REPLICA, is_missing=name[0] in missing)}) for name in ("1.0", "2.0")
    }
    fleet = Fleet(nodes=NODES, registered={"m": ServedModel("m", versions, "1.0")})
    made = make_endpoints(fleet, Upstream("m", version, ["a"]), lambda host: host, {})
    (found,) = made["endpoints"][0]["lb_endpoints"]
    assert found["health_status"] == status


@pytest.mark.parametrize("unresponsive_s", [1.0, 5.0])
def test_node_that_is_cut_off_is_left_in_the_time_that_was_set(unresponsive_s: float) -> None:
    made = make_clusters(GatewaySettings(limits=Limits(unresponsive_s=unresponsive_s)), FLEET)[1]
    (check,) = made["health_checks"]
    interval_s, timeout_s = (float(check[name].rstrip("s")) for name in ("interval", "timeout"))
    assert check["unhealthy_threshold"] * interval_s + timeout_s == pytest.approx(unresponsive_s, abs=0.01)
    keepalive = made["upstream_connection_options"]["tcp_keepalive"]
    probed_s = keepalive["keepalive_time"] + keepalive["keepalive_probes"] * keepalive["keepalive_interval"]
    assert probed_s <= max(2, unresponsive_s)
    (option,) = made["upstream_bind_config"]["socket_options"]
    assert option["int_value"] == unresponsive_s * 1000


@pytest.mark.parametrize(
    ("rate", "burst", "expected"),
    [
        (0.02, 2, (2, 1, "50.000s")),
        (0.02, None, (1, 1, "50.000s")),
        (1.5, None, (2, 2, "1.333s")),
        (500, None, (500, 500, "1.000s")),
    ],
)
def test_bucket_of_a_key_holds_a_second_and_at_least_one_request(
    rate: float, burst: int | None, expected: tuple[int, int, str]
) -> None:
    made = make_bucket(Key(client="a", key="k" * 16, requests_per_second=rate, burst=burst))
    assert (made["max_tokens"], made["tokens_per_fill"], made["fill_interval"]) == expected


KEYS = [Key(client=f"c{n}", key=f"{n:020}", requests_per_second=10.0**n) for n in range(-6, 7)]
ODD = Key(client="odd", key="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
EVERYTHING = GatewaySettings(
    tls=Tls(certificate="a.pem", key="b.pem", client_ca="c.pem"),
    ports=Ports(address="::", internal_address="::1", control_address="::1"),
    management=True,
    keys=(ODD, *KEYS),
)
LEAST = Limits(
    body_bytes=1, form_bytes=1, header_bytes=1024, headers=10, connections=1, attempts=1,
    header_s=0.01, body_s=0.01, idle_s=0.01, response_s=0.01, attempt_connect_s=0.01, unresponsive_s=0.01,
)  # fmt: skip
MOST = Limits(
    body_bytes=1 << 30, form_bytes=1 << 20, header_bytes=7 << 10, headers=1000, attempts=10,
    header_s=86400, body_s=86400, idle_s=86400, response_s=86400, attempt_connect_s=86400, unresponsive_s=86400,
)  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [EVERYTHING, GatewaySettings(limits=LEAST), GatewaySettings(limits=MOST)],
    ids=["everything", "least", "most"],
)
def test_envoy_takes_what_any_settings_make(settings: GatewaySettings, tmp_path: Path) -> None:
    """Everything in one file, since `--mode validate` reads no other."""
    whole = bootstrap(settings)
    del whole["dynamic_resources"]["cds_config"], whole["dynamic_resources"]["lds_config"]
    whole["static_resources"]["clusters"] += make_clusters(settings, FLEET)
    whole["static_resources"]["listeners"] = make_listeners(settings)
    for listener in whole["static_resources"]["listeners"]:
        manager = listener["filter_chains"][0]["filters"][-1]["typed_config"]
        manager["route_config"] = make_routes(settings, FLEET, manager.pop("rds")["route_config_name"])
        del manager["route_config"]["@type"]
    for resource in [*whole["static_resources"]["clusters"], *whole["static_resources"]["listeners"]]:
        resource.pop("@type", None)
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    files.write(settings, FLEET, tmp_path)
    command = [
        find_program(),
        "-c",
        "whole.json",
        "--mode",
        "validate",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
