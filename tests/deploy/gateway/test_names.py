"""Nodes found by a name: looked up in a file of hosts, and by the system's own resolver."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gateway.configuration import Configuration
from deploy.gateway.names import Names, lookup, node_at
from deploy.gateway.settings import Discover
from handlers.errors import InvalidConfig
from tests.waiting import until

# Seconds; a machine that stalls takes a second.
SOON_S, LOOK_S = 10.0, 0.05


class Hosts:
    """A file in the form of /etc/hosts, and a name server that may be slow."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers = threading.Event()
        self.answers.set()
        self.write()

    def write(self, *addresses: str) -> None:
        self.path.write_text("".join(f"{address} torchserve-nodes\n" for address in addresses))

    def lookup(self, host: str) -> list[str]:
        self.answers.wait(SOON_S)
        lines = (line.split() for line in self.path.read_text().splitlines())
        if found := [address for address, *names in lines if host in names]:
            return found
        raise OSError(-2, "Name or service not known")


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path / "hosts")


@pytest.fixture
def names(hosts: Hosts) -> Iterator[Names]:
    made = Names(hosts.lookup, LOOK_S)
    yield made
    hosts.answers.set()
    made.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"discover": {"host": "torchserve-nodes"}}))
    return path


def test_every_address_of_the_name_is_a_node_at_one_port(hosts: Hosts, names: Names, config: Path) -> None:
    hosts.write("10.0.0.7", "127.0.0.2", "10.0.0.7")
    _, nodes = Configuration(config, config, names).read(SOON_S)
    assert [each.name for each in nodes] == ["10-0-0-7", "127-0-0-2"]
    assert {nodes[0].inference, nodes[0].management, nodes[0].metrics} == {"http://10.0.0.7:8085"}
    assert nodes[0].token_file is None


def test_nodes_come_and_go_with_the_addresses_and_stay_where_the_name_does_not_resolve(
    hosts: Hosts, names: Names, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hosts.write("127.0.0.2")
    configuration = Configuration(config, config, names)
    configuration.read(SOON_S)
    assert configuration.changed() is None
    hosts.write("127.0.0.2", "127.0.0.3")
    seen: list[tuple[str, ...]] = []

    def changes_to(*wanted: str) -> bool:
        changed = configuration.changed()
        if changed is not None:
            seen.append(tuple(each.name for each in changed[1]))
        return bool(seen) and seen[-1] == wanted

    until(lambda: changes_to("127-0-0-2", "127-0-0-3"))
    hosts.write()
    until(lambda: "does not resolve" in caplog.text)
    assert configuration.changed() is None
    hosts.write("127.0.0.3")
    until(lambda: changes_to("127-0-0-3"))
    assert seen == [("127-0-0-2", "127-0-0-3"), ("127-0-0-3",)]
    # It is said once, however often it is looked up.
    assert caplog.text.count("does not resolve") == 1


def test_slow_name_server_keeps_nobody_waiting_and_the_nodes_there_are(
    hosts: Hosts, names: Names, config: Path
) -> None:
    url = "http://127.0.0.1:1"
    node = {"name": "named", "inference": url, "management": url, "metrics": url}
    config.write_text(json.dumps({"nodes": [node]}))
    configuration = Configuration(config, config, names)
    configuration.read()
    hosts.answers.clear()
    hosts.write("127.0.0.2")
    config.write_text(json.dumps({"discover": {"host": "torchserve-nodes"}}))
    began = time.monotonic()
    changed = configuration.changed()
    assert time.monotonic() - began < SOON_S / 2
    assert changed is not None
    assert [each.name for each in changed[1]] == ["named"]
    hosts.answers.set()
    found: list[str] = []

    def is_found() -> bool:
        found.extend(each.name for each in (configuration.changed() or (None, ()))[1])
        return found == ["127-0-0-2"]

    until(is_found)


def test_system_resolves_a_name_and_an_address() -> None:
    assert lookup("localhost") == ["127.0.0.1"]
    assert lookup("127.0.0.3") == ["127.0.0.3"]
    with pytest.raises(OSError, match=r"[Nn]ame|[Tt]emporary"):
        lookup("no-such-name.invalid")


def test_address_of_ipv6_is_a_name_and_a_url() -> None:
    node = node_at("fd00::7", 8085)
    assert node.name == "fd00-0000-0000-0000-0000-0000-0000-0007"
    assert node.inference == "http://[fd00::7]:8085"


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"discover": {"host": "a b"}}, "discover.host"),
        ({"discover": {"host": "a", "port": 0}}, "discover.port"),
        ({"discover": {}}, "discover.host"),
        ({"discover": {"host": "a"}, "nodes": "one"}, "nodes and discover exclude each other"),
        ({"canaries": {"m": {"version": "2.0", "percent": 101}}}, "canaries.m.percent"),
    ],
)
def test_settings_that_are_not_as_they_should_be_are_named(
    tmp_path: Path, document: dict[str, object], named: str
) -> None:
    url = "http://127.0.0.1:1"
    if document.get("nodes"):
        document = {**document, "nodes": [{"name": "n", "inference": url, "management": url, "metrics": url}]}
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidConfig, match=named):
        Configuration(path, path).read()


def test_name_without_an_answer_is_no_node() -> None:
    def never(_: str) -> list[str]:
        raise OSError(-3, "Temporary failure in name resolution")

    names = Names(never, LOOK_S)
    assert names.nodes(Discover(host="x"), SOON_S) is None
    names.close()
