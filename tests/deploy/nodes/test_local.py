from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.nodes.local import Layout, found, locals_of, nodes_of
from deploy.nodes.node import Node, read, write
from deploy.properties import Settings, parse
from deploy.server import ServerError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # pytest's own folders have long names, and a socket's path may not.
    monkeypatch.chdir(tmp_path)
    return Path("n")


def layout(tmp_path: Path, nodes: int, name: str = "config.properties", **replaced: str) -> Layout:
    config = tmp_path / "own.properties"
    text = (ROOT / name).read_text()
    for key, value in replaced.items():
        text = "\n".join(f"{key}={value}" if line.startswith(f"{key}=") else line for line in text.splitlines())
    config.write_text(text)
    return Layout(config, nodes)


def test_one_node_is_the_repositorys_own_server(tmp_path: Path) -> None:
    (only,) = locals_of(Layout(ROOT / "config.properties", 1), tmp_path)
    assert (only.name, only.is_alone, only.title) == ("node-1", True, "TorchServe")
    assert only.server.logs == ROOT / "logs"
    assert nodes_of([only]) == [
        Node(
            name="node-1",
            inference="http://127.0.0.1:8080",
            management="http://127.0.0.1:8081",
            metrics="http://127.0.0.1:8082",
        )
    ]
    assert not list(tmp_path.iterdir())


def test_several_have_ports_folders_and_keys_of_their_own_and_one_model_store(tmp_path: Path) -> None:
    nodes = locals_of(layout(tmp_path, 3, "config.production.properties"), tmp_path / "n", ROOT)
    assert [node.title for node in nodes] == ["node-1", "node-2", "node-3"]
    ports = [sorted(port for _, port in node.server.settings.ports.values()) for node in nodes]
    assert ports == [[7070, 7071, 8080, 8081, 8082], [7170, 7171, 8180, 8181, 8182], [7270, 7271, 8280, 8281, 8282]]
    assert {node.server.settings.model_store for node in nodes} == {str(ROOT / "model_store")}
    for folders in zip(*((node.server.logs, node.server.temporary, node.server.keys) for node in nodes), strict=True):
        assert len(set(folders)) == 3
    assert [node.token_file for node in nodes_of(nodes)] == [
        str((tmp_path / "n" / name / "key_file.json").resolve()) for name in ("node-1", "node-2", "node-3")
    ]
    # What is not of one node alone stays: what is served, and the limits.
    first, last = (parse(node.server.config.read_text()) for node in (nodes[0], nodes[2]))
    assert {key for key in first if first[key] != last[key]} == {
        "inference_address", "management_address", "metrics_address", "grpc_inference_port", "grpc_management_port"
    }  # fmt: skip
    assert nodes[2].server.settings.models == Settings.read(ROOT / "config.production.properties").models
    assert f"-Dlog4j2.configurationFile={ROOT}/deploy/log4j2.xml" in last["vmargs"]


def test_nodes_are_found_again_by_their_folders(tmp_path: Path) -> None:
    made = locals_of(layout(tmp_path, 2), tmp_path / "n")
    again = found(tmp_path / "n")
    assert [(node.name, node.server.settings) for node in again] == [(node.name, node.server.settings) for node in made]
    assert [node.server.temporary for node in again] == [node.server.temporary for node in made]


def test_addresses_of_every_interface_are_called_on_loopback(tmp_path: Path) -> None:
    wide = layout(tmp_path, 1, inference_address="http://0.0.0.0:8080")
    assert nodes_of(locals_of(wide, tmp_path))[0].inference == "http://127.0.0.1:8080"


def test_addresses_that_the_gateway_cannot_reach_are_refused_only_where_there_are_several(tmp_path: Path) -> None:
    assert nodes_of(locals_of(layout(tmp_path, 1, inference_address="https://127.0.0.1:8443"), tmp_path)) == []
    with pytest.raises(ServerError, match=r"inference .*must be http://HOST:PORT"):
        nodes_of(locals_of(layout(tmp_path, 2, inference_address="https://127.0.0.1:8443"), tmp_path / "n"))


def test_ports_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="metrics_address: 65500 and 1 times 100 are beyond 65535"):
        locals_of(layout(tmp_path, 2, metrics_address="http://127.0.0.1:65500"), tmp_path / "n")


def test_path_too_long_for_a_workers_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="too long a path for the workers' sockets; 108 bytes at most"):
        locals_of(layout(tmp_path, 2), tmp_path / ("x" * 100))


def test_layout_is_read_as_it_was_written_and_forgotten_with_its_configuration(tmp_path: Path) -> None:
    assert Layout.read(tmp_path) is None
    own = layout(tmp_path, 4)
    own.write(tmp_path / "n")
    assert Layout.read(tmp_path / "n") == own
    own.config.unlink()
    assert Layout.read(tmp_path / "n") is None


def test_nodes_json_is_what_the_gateway_reads(tmp_path: Path) -> None:
    nodes = nodes_of(locals_of(layout(tmp_path, 2), tmp_path / "n"))
    write(nodes, tmp_path / "n" / "nodes.json")
    assert read(tmp_path / "n" / "nodes.json") == nodes
    assert sorted(path.name for path in (tmp_path / "n").iterdir()) == ["node-1", "node-2", "nodes.json"]
