"""The units are such as systemd takes, and start what there is."""

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from deploy import serve
from deploy.gateway import __main__ as gateway
from deploy.gateway.settings import Settings
from deploy.models import ROOT

UNITS = ROOT / "deploy" / "systemd"
NAMES = ("torchserve@.service", "torchserve-gateway.service")


def parsed(name: str) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    return unit


def test_every_unit_is_tested() -> None:
    assert sorted(path.name for path in UNITS.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_systemd_has_nothing_to_say_against_the_unit(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    # An instance, with programs that are there.
    path = tmp_path / name.replace("@", "@node-1")
    path.write_text((UNITS / name).read_text().replace("/srv/torchserve/.venv/bin/python", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("name", NAMES)
def test_what_ends_is_started_again_and_a_stop_has_time_to_drain(name: str) -> None:
    service = parsed(name)["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    # The gateway waits once for what is in flight, a node once at the gateway and once at TorchServe.
    times = 2 if "@" in name else 1
    assert float(service["TimeoutStopSec"]) > times * Settings().limits.response_s + 60


def test_commands_are_those_of_the_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, main in (("torchserve@.service", serve.main), ("torchserve-gateway.service", gateway.main)):
        words = parsed(name)["Service"]["ExecStart"].split()[3:]
        values = {"${CONFIG}": "production", "${NODES}": "4", "%i": "node-2"}
        with pytest.raises(SystemExit) as raised:
            main([*(values.get(word, word) for word in words), "--help"])
        assert raised.value.code == 0
    assert re.search(r"--node NAME", capsys.readouterr().out)
