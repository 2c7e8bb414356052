"""gateway.yaml and nodes.json, read and read anew."""

import json
from pathlib import Path

import pytest

from deploy.gateway.configuration import Configuration, only_node
from deploy.gateway.settings import CONFIG, Discover, Settings, read
from deploy.nodes import node as node_files
from deploy.nodes.node import Node
from handlers.errors import InvalidConfig


def node(name: str) -> Node:
    url = "http://127.0.0.1:1"
    return Node(name=name, inference=url, management=url, metrics=url)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text("")
    return path


def test_shipped_settings_are_the_defaults_and_each_line_of_them_is_right(tmp_path: Path) -> None:
    assert read(CONFIG) == Settings()
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    # What is commented out, and is YAML and not prose: a setting or a part of one begins or is indented.
    shown: dict[str, list[str]] = {}
    for line in lines:
        if _is_part(line) or (shown and line.startswith(("#   ", "# -"))):
            shown.setdefault(line if _is_part(line) else list(shown)[-1], []).append(line.removeprefix("# "))
    name = shown.pop("# discover:")
    everything = tmp_path / "all.yaml"
    everything.write_text("\n".join(line for part in shown.values() for line in part))
    settings = read(everything)
    assert (len(settings.nodes), len(settings.keys), settings.tls is None) == (1, 1, False)
    assert settings.canaries["resnet-152"].header == ("X-Try", "yes")
    # The limits and ports that are shown are the defaults.
    assert (settings.ports, settings.limits) == (Settings().ports, Settings().limits)
    everything.write_text("\n".join(name))
    assert read(everything).discover == Discover(host="torchserve-nodes", port=8085)


def _is_part(line: str) -> bool:
    parts = ("nodes", "discover", "ports", "tls", "keys", "limits", "canaries")
    return line.rstrip() in {f"# {part}:" for part in parts}


def test_nodes_are_those_of_the_settings_or_of_the_file_or_the_only_one(config: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.json"
    configuration = Configuration(config, nodes)
    _, found = configuration.read()
    assert [each.inference for each in found] == ["http://127.0.0.1:8080"]
    node_files.write([node("of-file")], nodes)
    changed = configuration.changed()
    assert changed is not None
    assert [each.name for each in changed[1]] == ["of-file"]
    urls = dict.fromkeys(("inference", "management", "metrics"), "http://127.0.0.1:2")
    config.write_text(json.dumps({"nodes": [{"name": "of-settings", **urls}]}))
    changed = configuration.changed()
    assert changed is not None
    assert [each.name for each in changed[1]] == ["of-settings"]
    assert configuration.changed() is None


@pytest.mark.parametrize("text", ["limits: {body_bytes: -1}", "{", "nonsense: 1", "- 1"])
def test_file_that_is_not_as_it_should_be_changes_nothing(
    config: Path, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration(config, tmp_path / "nodes.json")
    configuration.read()
    config.write_text(text)
    assert configuration.changed() is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    # It is said once, and a file that is right again is read.
    assert configuration.changed() is None
    assert len(caplog.records) == 1
    config.write_text("management: true")
    changed = configuration.changed()
    assert changed is not None
    assert changed[0].management


def test_nodes_file_that_is_no_list_of_nodes_changes_nothing(config: Path, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.json"
    node_files.write([node("a")], nodes)
    configuration = Configuration(config, nodes)
    configuration.read()
    nodes.write_text('[{"name": "A B"}]')
    assert configuration.changed() is None


def test_ports_stay_until_the_next_start(config: Path, tmp_path: Path) -> None:
    configuration = Configuration(config, tmp_path / "nodes.json")
    configuration.read()
    config.write_text("ports: {http: 9000}\nmanagement: true")
    changed = configuration.changed()
    assert changed is not None
    assert (changed[0].ports.http, changed[0].management) == (8000, True)


def test_only_node_is_that_of_the_properties(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("inference_address=http://0.0.0.0:9080\nmanagement_address=http://127.0.0.1:9081\n")
    found = only_node(path)
    assert (found.inference, found.management) == ("http://127.0.0.1:9080", "http://127.0.0.1:9081")
    assert found.token_file == str(tmp_path / "key_file.json")
    path.write_text("inference_address=https://127.0.0.1:9080\n")
    with pytest.raises(InvalidConfig, match="http://HOST:PORT"):
        only_node(path)
