"""gateway.yaml, nodes.json and a name with addresses, and their changes."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from deploy.gateway.__main__ import check_ports, main
from deploy.gateway.configuration import GUARDED, START, STARTED, Configuration, resolve_host
from deploy.gateway.envoy import files
from deploy.gateway.settings import CONFIG, GatewaySettings, Ports, read_settings
from deploy.gateway.state import Fleet, ServedModel, ServedVersion
from deploy.gateway.supervisor import PROBLEM, GatewayFailed, read_problem, start_module
from deploy.nodes.run.node import Node, write_nodes
from deploy.settings_file import MOST_BYTES
from handlers.errors import InvalidConfig
from tests.deploy.gateway.envoy.harness import PLACEMENT
from tests.tables import table

# Headers of framing and of the gateway cannot be forwarded.
FRAMING = ("Expect", "te", "Transfer-Encoding", "Host", "Authorization", "X-Envoy-Retry-On", "X-Client")
URLS = dict.fromkeys(("inference", "management", "metrics"), "http://127.0.0.1:1")
KEYS = "".join(f"- client: {name}\n  key: {name * 20}\n  requests_per_second: 9\n  burst: 3\n" for name in "ab")
TLS = "tls:\n  certificate: chain.pem\n  key: key.pem\n  client_ca: clients.pem\n"
LIMITS = "limits:\n  body_bytes: 1000\n  attempts: 2\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").touch()
    return tmp_path / "gateway.yaml"


@pytest.fixture
def configuration(config: Path, tmp_path: Path) -> Configuration:
    return Configuration(config, tmp_path / "nodes.json")


def changed(configuration: Configuration) -> tuple[GatewaySettings, list[str]]:
    """Return the new settings and the names of the nodes; a changed file must be equal at the next read."""
    found = configuration.read_changes() or configuration.read_changes()
    assert found is not None
    return found[0], [node.name for node in found[1]]


@table(
    ({"limits": {"body_s": 0}, "ports": {"http": 0}, "nonsense": 1}, "ports.http.*limits.body_s.*nonsense"),
    ({"keys": [{"client": "a", "key": "too-short"}]}, "keys.0.key"),
    ({"keys": [{"client": name, "key": "k" * 16} for name in "ab"]}, "duplicate client or key"),
    ({"management": True}, "management: true without keys lets every client load"),
    *(({"forward_headers": ["X-Tenant", name]}, f"{name.lower()} must not reach a node") for name in FRAMING),
)
def test_wrong_settings_are_named(document: Any, named: str, configuration: Configuration, config: Path) -> None:
    config.write_text(json.dumps(document))
    with pytest.raises(InvalidConfig, match=named) as raised:
        configuration.read()
    assert "too-short" not in str(raised.value)


def test_missing_file_and_taken_port_are_one_line(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", "--config", f"{config}2"]) == 1
    assert capsys.readouterr().err == f"gateway: no file {config}2; CONFIG is a copy of deploy/gateway.yaml\n"
    with socket.create_server(("127.0.0.1", 0)) as other:
        host, port = other.getsockname()
        with pytest.raises(GatewayFailed) as raised:
            check_ports(config, [(host, port)])
    assert str(raised.value) == f"{host}:{port}: another server listens there; set other `ports` in {config}"


def test_file_of_the_most_bytes_is_read(config: Path) -> None:
    config.write_text("#" * MOST_BYTES)
    assert read_settings(config) == GatewaySettings()


def test_keys_that_others_may_read_are_rejected(configuration: Configuration, config: Path) -> None:
    config.write_text(json.dumps({"keys": [{"client": "a", "key": "k" * 16}]}) + "\n")
    for mode in (0o604, 0o602):
        config.chmod(mode)
        with pytest.raises(InvalidConfig, match="other users may read its keys: chmod 600"):
            configuration.read()
    config.chmod(0o640)
    assert configuration.read()[0].keys


def test_nodes_are_the_settings_or_the_files_and_unchanged_files_are_not_read(
    configuration: Configuration, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_settings(CONFIG) == configuration.read()[0] == GatewaySettings()
    assert configuration.read()[1] == ()
    write_nodes([Node(name="of-file", **URLS)], tmp_path / "nodes.json")
    assert changed(configuration)[1] == ["of-file"]
    config.write_text(json.dumps({"nodes": [{"name": "of-settings", **URLS}]}))
    assert changed(configuration)[1] == ["of-settings"]
    assert configuration.read_changes() is None
    config.write_text("limits: {attempts: 2}")
    for _ in range(2):
        configuration.read()
    monkeypatch.setattr("deploy.gateway.configuration.read_document", None)
    assert configuration.read()[0].limits.attempts == 2


def is_closed(settings: GatewaySettings, whole: GatewaySettings) -> bool:
    keys, all_keys = ({(each.client, each.key) for each in of.keys} for of in (settings, whole))
    return settings.tls == whole.tls and settings.limits == whole.limits and keys <= all_keys != set()


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_cut_settings_open_nothing(in_file: bool, order: tuple[int, ...], config: Path, tmp_path: Path) -> None:
    secret = tmp_path / "keys.yaml"
    secret.write_text(KEYS)
    for path in (config, secret):
        path.chmod(0o600)
    parts = [TLS, LIMITS, f"key_file: {secret.name}\n" if in_file else f"keys:\n{KEYS}"]
    config.write_text("".join(parts[each] for each in order))
    for path in (secret, config) if in_file else (config,):
        lines = path.read_text().splitlines(keepends=True)
        for count in range(len(lines)):
            configuration = Configuration(config, tmp_path / "nodes.json", state_dir=tmp_path)
            effective = whole = configuration.read()[0]
            path.write_text("".join(lines[:count]))
            for _ in range(3):
                effective, _ = configuration.read_changes() or (effective, ())
                assert is_closed(effective, whole), lines[:count]
            # A control process that is started again by itself.
            again = Configuration(config, tmp_path / "nodes.json", state_dir=tmp_path)
            try:
                assert is_closed(again.parse(), whole)
            except InvalidConfig:
                assert configuration.problem
            path.write_text("".join(lines))
            assert is_closed(configuration.read()[0], whole)
        if "burst" in lines[-1]:
            # A key that is cut is shorter, and not the one that its client has.
            path.write_text("".join(lines)[:-1])
            assert [configuration.read_changes() for _ in range(3)] == [None] * 3
            assert f"{path.name}: its last line is incomplete: end the file with a newline" in configuration.problem
            path.write_text("".join(lines))


def test_new_control_process_keeps_the_ports_of_the_gateways_start(config: Path, tmp_path: Path) -> None:
    (tmp_path / STARTED).write_bytes(START.dump_json((config, Ports(http=9000))))
    assert Configuration(config, tmp_path / "nodes.json", state_dir=tmp_path).read()[0].ports == Ports(http=9000)


def count_open(state_dir: Path) -> int:
    """Return how many probes and inferences Envoy does not answer with 503."""
    (routing,) = json.loads((state_dir / "routes-http.json").read_text())["resources"]
    routes: list[dict[str, Any]] = routing["virtual_hosts"][0]["routes"]
    to_nodes: int = sum(each.get("route", {}).get("cluster", "control") != "control" for each in routes)
    is_live = "/v2/health/live"
    probes = [each for each in routes if each["match"].get("path") != is_live]
    return to_nodes + len([each for each in probes if each.get("direct_response") == {"status": 200}])


def serve_model(state_dir: Path) -> None:
    served = ServedModel("m", {"1.0": ServedVersion("1.0", {"node-1": PLACEMENT})}, "1.0")
    fleet = Fleet({"node-1": Node(name="node-1", **URLS)}, registered={"m": served}, is_up=True)
    files.write(GatewaySettings(), fleet, state_dir)


def test_control_process_that_cannot_read_its_settings_shuts_envoy_and_says_why(config: Path, tmp_path: Path) -> None:
    serve_model(tmp_path)
    assert count_open(tmp_path) > 2
    (tmp_path / GUARDED).write_text('[["tls"]]')
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = ["deploy.gateway.control", str(config), str(tmp_path / "nodes.json"), str(tmp_path)]
        assert start_module(words, tmp_path / "log", theirs.fileno()).wait() == 1
    problem = "gateway.yaml: has no tls any more; `tls: none` or a restart removes it"
    assert problem in (tmp_path / "log").read_text()
    assert read_problem(tmp_path / PROBLEM) == f"{problem}; every inference gets 503"
    assert count_open(tmp_path) == 0


def test_start_that_is_rejected_shuts_an_envoy_without_a_supervisor(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config", str(config), "--state-dir", str(tmp_path)]
    for command, is_shut in (("check", False), ("start", True), ("run", True)):
        serve_model(tmp_path)
        config.write_text("key_file: keys.yaml\n")
        assert main([command, *words]) == 1
        assert (capsys.readouterr().err.count("\n"), count_open(tmp_path) == 0) == (1, is_shut)


def test_guards_that_cannot_be_read_do_not_open_the_door(config: Path, tmp_path: Path) -> None:
    (tmp_path / GUARDED).write_text("")
    with pytest.raises(InvalidConfig, match="has no keys any more"):
        Configuration(config, tmp_path / "nodes.json", state_dir=tmp_path).parse()


def make_odd(path: Path, kind: str) -> None:
    match kind:
        case "a pipe":
            os.mkfifo(path, 0o600)
        case "a folder":
            path.mkdir()
        case "a device":
            path.symlink_to("/dev/zero")
        case "a broken link":
            path.symlink_to("nowhere")
        case _:
            path.touch(0o600)
            path.write_text(kind)


@table(
    *((kind, "not a regular file") for kind in ("a pipe", "a folder", "a device")),
    ("a broken link", "keys.yaml: No such file"),
    ("#" * (MOST_BYTES + 1), f"over {MOST_BYTES} bytes"),
    *((text, "expected a list of keys") for text in ("none\n", "", "{}\n", "[]\n", "a: none\n", "null\n")),
    (f"- {{client: a, key: {'a' * 20}, requests_per_second: none}}\n", "0.requests_per_second"),
    ("- none\n", "0: "),
    ("- {client: a, key: none}\n", "0.key"),
    (f"- {{client: a, key: {'a' * 20}}}\n- {{client: a, key: {'b' * 20}}}\n", "duplicate client or key"),
    ("- {client: a", "line 1: not valid YAML"),
)
def test_key_file_that_is_no_list_of_keys_shuts_and_is_named(
    kind: str, words: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = config.with_name("keys.yaml")
    make_odd(secret, KEYS)
    config.write_text("key_file: keys.yaml\n")
    configuration = Configuration(config, config.with_name("nodes.json"), state_dir=config.parent)
    configuration.read()
    secret.unlink()
    make_odd(secret, kind)
    assert [configuration.read_changes() for _ in range(3)] == [None] * 3
    assert configuration.is_shut
    assert main(["check", "--config", str(config), "--state-dir", str(config.parent)]) == 1
    error = capsys.readouterr().err
    assert (error.count("\n"), "keys.yaml" in error, words in error) == (1, True, True), error


def test_rate_is_removed_without_a_restart(config: Path) -> None:
    secret = config.with_name("keys.yaml")
    make_odd(secret, KEYS)
    config.write_text("key_file: keys.yaml\n")
    configuration = Configuration(config, config.with_name("nodes.json"), state_dir=config.parent)
    assert configuration.read()[0].keys[1].requests_per_second == 9
    secret.write_text(KEYS.replace("  requests_per_second: 9\n  burst: 3\n", ""))
    assert [each.requests_per_second for each in changed(configuration)[0].keys] == [None, None]
    assert (configuration.is_shut, configuration.problem) == (False, "")


@table(
    (f"keys:\n{KEYS}", "has no keys any more; `keys: none` or a restart removes it", True),
    (TLS, "has no tls any more; `tls: none` or a restart removes it", False),
    ("  client_ca: clients.pem\n", "has no tls.client_ca any more; `tls.client_ca: none` or", False),
    (LIMITS, "has no limits any more", False),
    ("  attempts: 2\n", "has no limits.attempts any more", False),
)
def test_guard_is_removed_by_none_only(lost: str, words: str, is_shut: bool, config: Path, tmp_path: Path) -> None:
    config.chmod(0o600)
    whole = f"{TLS}{LIMITS}keys:\n{KEYS}"
    config.write_text(whole)
    configuration = Configuration(config, tmp_path / "nodes.json", state_dir=tmp_path)
    configuration.read()
    config.write_text(whole.replace(lost, "") + "management: false\n")
    # An editor may still write: no request is rejected before the second read.
    assert (configuration.read_changes(), configuration.is_shut, configuration.problem) == (None, False, "")
    assert configuration.read_changes() is None
    assert (configuration.is_shut, words in configuration.problem) == (is_shut, True), configuration.problem
    indent = " " * (len(lost) - len(lost.lstrip()))
    config.write_text(whole.replace(lost, f"{indent}{lost.split(':', maxsplit=1)[0].strip()}: none\n"))
    changed(configuration)
    config.write_text(whole.replace(lost, ""))
    for _ in range(2):
        configuration.read_changes()
    assert (configuration.is_shut, configuration.problem) == (False, "")


@table(
    *(
        ("gateway.yaml", text)
        for text in ("{", "limits: 2026-13-45", "2026-01-01: 1", "&a [*a]", "key_file: none.yaml")
    ),
    ("nodes.json", '[{"name": "A B"}]'),
    ("nodes.json", json.dumps([{"name": "a", **URLS, "metrics": "http://127.0.0.1:65536"}])),
)
def test_file_that_is_not_as_it_should_be_changes_nothing(
    name: str, text: str, configuration: Configuration, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration.read()
    broken = config.with_name(name)
    broken.write_text(text)
    # It is logged once, and a file that is right again is read.
    assert [configuration.read_changes() for _ in range(3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    broken.unlink()
    config.write_text("limits: {attempts: 2}")
    assert changed(configuration)[0].limits.attempts == 2


def test_new_process_with_broken_nodes_knows_its_keys_and_its_former_nodes(config: Path) -> None:
    make_odd(config.with_name("keys.yaml"), KEYS)
    config.write_text("key_file: keys.yaml\n")
    nodes = config.with_name("nodes.json")
    nodes.write_text("[")
    known = Node(name="known", **URLS)
    configuration = Configuration(config, nodes, [known], state_dir=config.parent)
    settings, found = configuration.read()
    assert (len(settings.keys), found) == (2, (known,))
    assert (configuration.read_changes(), configuration.is_shut) == (None, False)
    assert "not a nodes.json" in configuration.problem and "the known nodes stay" in configuration.problem
    write_nodes([Node(name="new", **URLS)], nodes)
    assert (changed(configuration)[1], configuration.problem) == (["new"], "")


def test_addresses_of_a_name_are_nodes(config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    addresses: list[str] = []

    def resolve(host: str) -> list[str]:
        if host != "torchserve-nodes" or not addresses:
            raise OSError(-2, "Name or service not known")
        return addresses

    config.write_text(json.dumps({"discover": {"host": "torchserve-nodes"}}))
    known = Node(name="10-0-0-9", **URLS)
    named = Configuration(config, tmp_path / "nodes.json", [known], resolve)
    # A new process keeps the known nodes while the name does not resolve.
    assert named.read()[1] == (known,)
    addresses += ["fd00::7", "10.0.0.7", "10.0.0.7"]
    found = named.read_changes()
    assert found is not None
    first, second = found[1]
    assert (first.name, {first.inference, first.management, first.metrics}) == ("10-0-0-7", {"http://10.0.0.7:8085"})
    assert (second.name[-4:], second.inference) == ("0007", "http://[fd00::7]:8085")
    addresses.clear()
    assert [named.read_changes() for _ in range(3)] == [None] * 3
    addresses.append("127.0.0.3")
    assert (changed(named)[1], caplog.text.count("does not resolve")) == (["127-0-0-3"], 2)
    assert [resolve_host(host) for host in ("localhost", "127.0.0.3", "::1")] == [["127.0.0.1"], ["127.0.0.3"], ["::1"]]
