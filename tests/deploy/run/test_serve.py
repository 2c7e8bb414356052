"""make serve before anything is started: what it refuses in one line, and what it prints while it waits."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.models import ROOT
from deploy.run.__main__ import main
from deploy.run.production import NotAsConfigured, calls, named
from deploy.run.properties import Settings
from deploy.run.server import Server, ServerError
from deploy.run.waits import Waits
from deploy.sandbox import Ports, config_for

ENTRY = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1}


def archive(store: Path, file: str, name: str, version: str = "1.0") -> None:
    """An archive as a folder, with no more than its manifest."""
    (store / file / "MAR-INF").mkdir(parents=True)
    model = {"modelName": name, "modelVersion": version, "handler": "h.py"}
    (store / file / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))


@pytest.mark.parametrize(
    ("load_models", "entries", "words"),
    [
        (("m.mar",), {"m": {"1.0": ENTRY}}, None),
        (("own=m.mar",), {"own": {"1.0": ENTRY}}, None),
        ((), {}, "load_models names no archive"),
        (("n.mar",), {"n": {"1.0": ENTRY}}, r"n\.mar is missing, which load_models names: ./archive.sh n builds it"),
        (("broken.mar",), {"m": {"1.0": ENTRY}}, r"broken\.mar"),
        (("m.mar",), {"other": {"1.0": ENTRY}}, r"m\.mar holds m, which models= has no entry for; it names other"),
        (("m.mar",), {"m": {"2.0": ENTRY}}, r"m\.mar holds m 1\.0, and models= names 2\.0"),
        (
            ("m.mar",),
            {"m": {"1.0": {"marName": "n.mar"}}},
            r"models= has marName n\.mar for m 1\.0, and load_models na",
        ),
        (("m.mar",), {"m": {"1.0": ENTRY}, "n": {"1.0": ENTRY}}, "models= names n, which no archive of load_models ho"),
    ],
)
def test_production_serves_what_its_configuration_names_or_says_what_is_wrong(
    load_models: tuple[str, ...], entries: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    archive(tmp_path, "m.mar", "m")
    (tmp_path / "broken.mar").write_bytes(b"no archive")
    settings = Settings(load_models=load_models, models=entries)
    if words is None:
        (found,) = named(settings, tmp_path)
        assert (found.name, found.version, found.is_untrained) == (next(iter(entries)), "1.0", False)
    else:
        with pytest.raises(NotAsConfigured, match=words):
            named(settings, tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    config = tmp_path / "config.properties"
    text = (ROOT / "config.production.properties").read_text()
    config.write_text(config_for(text, Ports.free(), ROOT, tmp_path))
    return Server(config, directory=tmp_path, temporary=tmp_path)


def test_key_is_read_only_from_a_file_that_is_its_owners_alone(server: Server) -> None:
    assert server.key("inference") is None
    server.keys.write_text(json.dumps({"inference": {"key": "secret"}}))
    server.keys.chmod(0o644)
    with pytest.raises(ServerError, match=r"can be read by others than its owner: chmod 600"):
        server.key("inference")
    server.keys.chmod(0o600)
    assert server.key("inference") == "secret"
    with pytest.raises(ServerError, match="no management key in it"):
        server.key("management")
    (line,) = calls(server, named_model(server), server.key("inference"))
    url = f"{server.settings.inference_url}/predictions/mobilenet-v2"
    assert line == f'curl -H "Authorization: Bearer secret" -T examples/mobilenet-v2/espresso.jpg {url}'


def named_model(server: Server) -> Any:
    archive(server.directory, "m.mar", "mobilenet-v2", "1.0-untrained")
    settings = Settings(load_models=("m.mar",), models={"mobilenet-v2": {"1.0-untrained": ENTRY}})
    found = named(settings, server.directory)
    assert found[0].is_untrained
    return found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["start", "--config", "no-such"],
            "serve: no configuration no-such: CONFIG is a path, or one of large-bodies, ",
        ),
        (["run", "--nodes", "2"], "serve: run watches one node, and there are 2: name it with --node"),
        (["run", "--node", "node-7"], "serve: no node node-7: there are node-1"),
    ],
)
def test_wrong_command_is_one_line_and_exit_1(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--folder", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)


@pytest.mark.parametrize("nodes", ["0", "two", "-1"])
def test_number_of_nodes_that_is_none_exits_2(nodes: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["start", "--nodes", nodes])


def test_waits_are_a_line_each_without_a_terminal_and_live_lines_on_one(capsys: pytest.CaptureFixture[str]) -> None:
    with Waits(Console(file=io.StringIO(), force_terminal=False)) as waits, waits.on("[other]: waiting"):
        assert capsys.readouterr().out == "[other]: waiting ...\n"
    shown = io.StringIO()
    with Waits(Console(file=shown, force_terminal=True, width=80)) as waits:
        with pytest.raises(LookupError), waits.on("[other]: waiting"):
            waits.refresh()
            assert "[other]: waiting, 0 s" in shown.getvalue()
            raise LookupError
        shown.truncate(0)
        waits.refresh()
    assert "waiting" not in shown.getvalue()
