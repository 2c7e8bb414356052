"""The nodes of one machine: their folders, ports and shares of it, and the units that start them."""

from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest

from deploy.gateway import __main__ as gateway
from deploy.gateway.settings import GatewaySettings
from deploy.models import ROOT
from deploy.run import __main__ as run
from deploy.run.errors import ServerError
from deploy.run.machine import Layout, all_nodes, find_gpus, local_nodes, reachable_nodes, split_machine
from deploy.run.node import Node, read_nodes, write_nodes
from deploy.run.properties import ServerSettings, parse
from deploy.run.server import STOP_TIMEOUT_S, Share
from deploy.serve import __main__ as serve
from deploy.serve.process import LATE_S
from deploy.serve.server import Limits

UNITS = ROOT / "deploy" / "run" / "systemd"


def layout(tmp_path: Path, nodes: int, name: str = "config.properties", **replaced: str) -> Layout:
    config = tmp_path / "own.properties"
    text = (ROOT / name).read_text()
    for key, value in replaced.items():
        text = "\n".join(f"{key}={value}" if line.startswith(f"{key}=") else line for line in text.splitlines())
    config.write_text(text)
    return Layout(config, nodes)


def test_one_node_is_the_repositorys_own_server(tmp_path: Path) -> None:
    (only,) = local_nodes(Layout(ROOT / "config.properties", 1), tmp_path)
    assert (only.name, only.is_single, only.title, only.server.logs) == ("node-1", True, "TorchServe", ROOT / "logs")
    urls = {f"{api}": f"http://127.0.0.1:808{port}" for port, api in enumerate(("inference", "management", "metrics"))}
    restore_file = str(tmp_path / "node-1" / "restore.json")
    assert reachable_nodes([only]) == [Node(name="node-1", **urls, restore_file=restore_file)]
    assert not list(tmp_path.iterdir())
    # A server on every interface is called on loopback; a server that the gateway cannot reach is not a node.
    wide = layout(tmp_path, 1, inference_address="http://0.0.0.0:8080")
    assert reachable_nodes(local_nodes(wide, tmp_path))[0].inference == "http://127.0.0.1:8080"
    assert reachable_nodes(local_nodes(layout(tmp_path, 1, inference_address="https://127.0.0.1:8443"), tmp_path)) == []


def test_several_have_ports_folders_and_keys_of_their_own_and_one_model_store(tmp_path: Path) -> None:
    place = tmp_path / "n"
    nodes = local_nodes(layout(tmp_path, 3, "config.production.properties"), place, ROOT)
    assert [node.title for node in nodes] == ["node-1", "node-2", "node-3"]
    ports = [sorted(port for _, port in node.server.settings.ports.values()) for node in nodes]
    assert ports == [[7070, 7071, 8080, 8081, 8082], [7170, 7171, 8180, 8181, 8182], [7270, 7271, 8280, 8281, 8282]]
    assert {node.server.settings.model_store for node in nodes} == {str(ROOT / "model_store")}
    for folders in zip(*((node.server.logs, node.server.temporary, node.server.keys) for node in nodes), strict=True):
        assert len(set(folders)) == 3
    keys = [str((place / name / "key_file.json").resolve()) for name in ("node-1", "node-2", "node-3")]
    assert [node.token_file for node in reachable_nodes(nodes)] == keys
    # The shared settings stay: models and limits.
    first, last = (parse(node.server.config.read_text()) for node in (nodes[0], nodes[2]))
    assert {key for key in first if first[key] != last[key]} == {
        "inference_address", "management_address", "metrics_address", "grpc_inference_port", "grpc_management_port"
    }  # fmt: skip
    assert nodes[2].server.settings.models == ServerSettings.read(ROOT / "config.production.properties").models
    assert f"-Dlog4j2.configurationFile={ROOT}/deploy/log4j2.xml" in last["vmargs"]
    own = layout(tmp_path, 3)
    own.write(place)
    assert Layout.read(place) == own
    assert Layout.read(tmp_path) is None
    # Found again by their folders, and read by the gateway as they were written.
    assert [(each.name, each.server.settings) for each in all_nodes(own.config, place)[1:]] == [
        (each.name, each.server.settings) for each in nodes
    ]
    write_nodes(reachable_nodes(nodes), place / "nodes.json")
    assert read_nodes(place / "nodes.json") == reachable_nodes(nodes)


@pytest.mark.parametrize(
    ("folder", "replaced", "words"),
    [
        ("n", {"inference_address": "https://127.0.0.1:8443"}, r"inference .*must be http://HOST:PORT"),
        ("n", {"metrics_address": "http://127.0.0.1:65500"}, "metrics_address: 65500 and 1 times 100 are beyond 65535"),
        ("x" * 100, {}, "too long a path for the workers' sockets; 108 bytes at most"),
    ],
)
def test_several_for_which_there_is_no_room_are_refused(
    folder: str, replaced: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ServerError, match=words):
        reachable_nodes(local_nodes(layout(tmp_path, 2, **replaced), tmp_path / folder))


# -- shares of the machine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "nodes", "expected"),
    [
        # Only some of the machine's may be used.
        ([2, 5, 7], 3, [(2,), (5,), (7,)]),
        ([0, 1], 3, [(0,), (1,), (0,)]),
    ],
)
def test_cores_are_split_evenly_and_shared_only_where_there_are_too_few(
    cores: list[int], nodes: int, expected: list[tuple[int, ...]]
) -> None:
    assert [share.cores for share in split_machine(cores, [], nodes)] == expected
    assert split_machine(cores, ["0", "1"], 1) == [Share()]


def test_each_node_has_a_gpu_of_its_own_while_there_are_some() -> None:
    assert [share.gpu for share in split_machine(range(8), ["0", "3"], 3)] == ["0", "3", "0"]
    for visible, gpus in (("1,3", ["1", "3"]), ("", []), ("-1", [])):
        assert find_gpus({"CUDA_VISIBLE_DEVICES": visible}) == gpus


# -- systemd -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "program", "ends_s"),
    [
        ("torchserve@.service", run.main, GatewaySettings().limits.response_s + STOP_TIMEOUT_S),
        ("torchserve-gateway.service", gateway.main, GatewaySettings().limits.response_s + STOP_TIMEOUT_S),
        ("torchserve-host@.service", lambda _: serve.main(), Limits().drain_s + LATE_S),
    ],
)
def test_unit_starts_a_command_that_there_is_again_and_again_and_has_time_to_drain(
    name: str, program: Callable[[list[str]], int], ends_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    service = unit["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    assert float(service["TimeoutStopSec"]) > ends_s
    values = {"${CONFIG}": "production", "${NODES}": "4", "${PORT}": "8080", "%i": "node-2"}
    words = [*(values.get(word, word) for word in service["ExecStart"].split()[3:]), "--help"]
    monkeypatch.setattr("sys.argv", ["", *words])
    with pytest.raises(SystemExit, match="0"):
        program(words)
