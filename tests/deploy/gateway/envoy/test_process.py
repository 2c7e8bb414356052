"""Envoy's process: its errors, its logs, its end, and whether it takes the configuration that settings make."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy.gateway import supervisor
from deploy.gateway.envoy import files
from deploy.gateway.envoy.clusters import Upstream, make_clusters, make_endpoints
from deploy.gateway.envoy.listeners import bootstrap, make_bucket, make_listeners
from deploy.gateway.envoy.process import Envoy, EnvoyError, find_program
from deploy.gateway.envoy.routes import make_routes
from deploy.gateway.settings import Canary, GatewayLimits, GatewaySettings, Key, Ports, Tls
from deploy.gateway.state import Fleet, ServedModel, ServedVersion
from deploy.models import ROOT
from deploy.nodes.run.node import Node
from tests.deploy.gateway.envoy.harness import PLACEMENT, Gateway, wait
from tests.tables import table

VERSIONS = {each: ServedVersion(each, dict.fromkeys(on, PLACEMENT)) for each, on in (("1.0", "ab"), ("2.0", "bc"))}
MODELS = {"m-1_x.y": ServedModel("m-1_x.y", VERSIONS, "1.0")}
KEYS = [Key(client=f"c{n}", key=f"{n:020}", requests_per_second=10.0**n) for n in range(-6, 7)]
ODD = Key(client="odd", key="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
TLS = Tls(certificate="a.pem", key="b.pem", client_ca="c.pem")
PORTS = Ports(address="::", internal_address="::1", control_address="::1")
EVERYTHING = GatewaySettings(tls=TLS, ports=PORTS, management=True, keys=(ODD, *KEYS))
LEAST = GatewayLimits(
    body_bytes=1, form_bytes=1, header_bytes=1024, headers=10, connections=1, attempts=1,
    header_s=0.01, body_s=0.01, idle_s=0.01, response_s=0.01, attempt_connect_s=0.01, unresponsive_s=0.01,
)  # fmt: skip
MOST = GatewayLimits(
    body_bytes=1 << 30, form_bytes=1 << 20, header_bytes=7 << 10, headers=1000, attempts=10,
    header_s=86400, body_s=86400, idle_s=86400, response_s=86400, attempt_connect_s=86400, unresponsive_s=86400,
)  # fmt: skip


def node(name: str, host: str = "127.0.0.1", token_file: str | None = None) -> Node:
    inference, management, metrics = (f"http://{host}:{port}" for port in (8080, 8081, 8082))
    return Node(name=name, inference=inference, management=management, metrics=metrics, token_file=token_file)


NODES = {"a": node("a", token_file="none"), "b": node("b", "[::1]")}  # noqa: S106
FLEET = Fleet(nodes=NODES, registered=MODELS, canaries={"m-1_x.y": Canary("2.0", 33.3, ("X-A", "b"))})


@table(
    *((missing, version, "UNKNOWN") for missing, version in (("", None), ("1", None), ("1", "2.0"))),
    *((missing, version, "DRAINING") for missing, version in (("12", None), ("1", "1.0"))),
)
def test_node_drains_for_a_version_or_model_that_it_lacks(missing: str, version: str | None, status: str) -> None:
    placements = {name: {"a": replace(PLACEMENT, is_missing=name[0] in missing)} for name in ("1.0", "2.0")}
    versions = {name: ServedVersion(name, on) for name, on in placements.items()}
    fleet = Fleet(nodes=NODES, registered={"m": ServedModel("m", versions, "1.0")})
    made = make_endpoints(fleet, Upstream("m", version, ["a"]), lambda host: host, {})
    (found,) = made["endpoints"][0]["lb_endpoints"]
    assert found["health_status"] == status


@pytest.mark.parametrize("unresponsive_s", [1.0, 5.0])
def test_node_that_is_cut_off_is_left_in_the_time_that_was_set(unresponsive_s: float) -> None:
    made = make_clusters(GatewaySettings(limits=GatewayLimits(unresponsive_s=unresponsive_s)), FLEET)[1]
    (check,) = made["health_checks"]
    interval_s, timeout_s = (float(check[name].rstrip("s")) for name in ("interval", "timeout"))
    assert check["unhealthy_threshold"] * interval_s + timeout_s == pytest.approx(unresponsive_s, abs=0.01)
    probe = made["upstream_connection_options"]["tcp_keepalive"]
    probed_s = probe["keepalive_time"] + probe["keepalive_probes"] * probe["keepalive_interval"]
    assert probed_s <= max(2, unresponsive_s)
    (option,) = made["upstream_bind_config"]["socket_options"]
    assert option["int_value"] == unresponsive_s * 1000


@table(
    (0.02, 2, (2, 1, "50.000s")),
    (0.02, None, (1, 1, "50.000s")),
    (1.5, None, (2, 2, "1.333s")),
    (500, None, (500, 500, "1.000s")),
)
def test_bucket_holds_one_second_or_request(rate: float, burst: int | None, expected: tuple[int, int, str]) -> None:
    made = make_bucket(Key(client="a", key="k" * 16, requests_per_second=rate, burst=burst))
    assert (made["max_tokens"], made["tokens_per_fill"], made["fill_interval"]) == expected


@pytest.mark.parametrize("settings", [EVERYTHING, GatewaySettings(limits=LEAST), GatewaySettings(limits=MOST)])
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
    command = f"{find_program()} -c whole.json --mode validate --disable-hot-restart --log-level warning".split()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_keeps_it_from_a_start_is_named(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Envoy(tmp_path)
    files.write(gateway.settings, Fleet(), tmp_path)
    # The kernel would let two processes share the clients of one port.
    with pytest.raises(EnvoyError, match=rf"127\.0\.0\.1:{gateway.settings.ports.http}"):
        second.keep(bootstrap(gateway.settings))
    assert second.pid() is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvoyError, match="envoy is not installed"):
        second.keep(bootstrap(gateway.settings))
    monkeypatch.undo()
    words = ["prlimit", "--nofile=4000", sys.executable, "-m", "deploy.gateway", "run", "--state-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "gateway: limits.connections 4096 needs 8960 open files, and `ulimit -Hn` is 4000\n"


def test_logs_are_rotated_whole_and_stop_ends_what_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 300)
    # A folder whose path is longer than a socket's limit.
    (run := tmp_path / ("a" * 100)).mkdir()
    # A container's own output, behind a link of few bytes.
    (run / "out").write_text("x" * 1000)
    (run / "linked.log").symlink_to("out")
    with Gateway(run, GatewaySettings()) as gateway, (run / "own.log").open("a") as own:
        for word in ("first", "second"):
            own.write(word * 100)
            own.flush()
            gateway.ask("GET", f"/{word}")
            gateway.logged(path=f"/{word}")
            supervisor._rotate_logs(run, gateway.envoy)
            wait((run / "access.log").exists)
            assert f'"/{word}"' in (run / "access.log.1").read_text()
            assert (run / "own.log.1").read_text() == word * 100
            assert (run / "linked.log").read_text() == "x" * 1000
        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(gateway.ask, "POST", "/predictions/m", headers={"X-Do": "wait"})
            wait(lambda: gateway.in_flight() == 1)
            assert (gateway.envoy.stop(0.2), gateway.envoy.pid()) == (False, None)
            with pytest.raises(requests.ConnectionError):
                sent.result(60)
