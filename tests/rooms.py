"""Optional parts of the project, and copies of its tree without them.

ROOMS -> leave_out -> a copy without the folders, registrations and tests of a part -> tests/room_check.py
"""

import ast
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deploy.models import ROOT

SOURCE = ("client", "deploy", "handlers", "load")
HOUSE = {*SOURCE, "torchserve_client", "docs", "tests"}
# Bytes above which a copy has a link in place of a file: photographs and locks.
LINKED_BYTES = 100_000


class Room(NamedTuple):
    """A part that can be removed."""

    paths: tuple[str, ...]  # folders and files; a folder ends in a slash
    cuts: tuple[tuple[str, str], ...] = ()  # registrations: a file, and a pattern of the lines that leave it
    above: tuple[str, ...] = ()  # parts that need this one, and leave with it


def line(words: str) -> str:
    return rf".*{re.escape(words)}.*\n"


ROOMS = {
    "gateway": Room(
        (
            *("deploy/gateway/", "deploy/gateway.yaml", "docs/how-to/gateway.md"),
            *("docs/how-to/keys-and-tls.md", "docs/how-to/roll-out.md", "docs/reference/gateway.md"),
            "docs/how-to/embeddings-in-production.md",
        ),
        (
            ("deploy/rooms.py", line('"gateway"')),
            ("docs/generate.py", r', "gateway"'),
            ("tests/pages.py", r".*(?:keys-and-tls|embeddings-in-production|how-to/gateway|roll-out)\.md.*\n"),
        ),
        ("container",),
    ),
    "container": Room(
        (
            *("deploy/nodes/container/", "compose.yaml", "docs/how-to/kubernetes.md", "tests/nightly/container/"),
            *(f"deploy/kubernetes/{name}/" for name in ("base", "components", "jobs", "overlays")),
        )
    ),
    "ray": Room(
        (
            *("deploy/hosts/ray/", "deploy/kubernetes/ray/", "deploy/prometheus/ray.yml", "deploy/extras/ray.lock"),
            "docs/how-to/ray-serve.md",
        ),
        (("docs/generate.py", r', "hosts\.ray"'),),
    ),
    "serve": Room(
        (
            *("deploy/hosts/serve/", "load/bench/hosts.py", "load/bench/processes.py", "load/bench/gpu.py"),
            "load/bench/trained.py",
            "docs/how-to/one-process.md",
        ),
        (
            ("load/bench/__main__.py", line('"hosts"')),
            ("load/bench/__main__.py", line('"gpu"')),
            ("load/bench/__main__.py", line('"trained"')),
            ("load/bench/__main__.py", line('"processes"')),
            ("docs/generate.py", r', "hosts\.serve"'),
            ("load/bench/peers.py", r"(?<=embeddings, )hosts, "),
            ("load/bench/peers.py", r".*\n.*hosts\.serve_tuned.*\n"),
            ("load/bench/embeddings.py", r"(?<=archives, )hosts, "),
            ("load/bench/embeddings.py", line("hosts.serve_tuned")),
        ),
    ),
    "scoring": Room(("deploy/hosts/scoring/", "docs/how-to/bulk-scoring.md")),
    "migrate": Room(("deploy/archives/migrate/", "docs/how-to/move.md"), (("deploy/rooms.py", line('"migrate"')),)),
    "int8": Room(
        (
            *("deploy/archives/precision/int8.py", "deploy/archives/precision/quantise.py"),
            *("deploy/extras/int8.lock", "load/bench/int8.py", "docs/how-to/int8.md"),
            "load/bench/trained.py",
        ),
        (("deploy/rooms.py", line('"int8"')), ("load/bench/__main__.py", line('"int8"'))),
    ),
    "page": Room(
        ("deploy/gateway/page/", "deploy/gateway/control/page.py"),
        (("deploy/gateway/control/__main__.py", line('"page"')),),
    ),
    "bench": Room(("load/bench/", "docs/reference/results.md")),
    "object detection": Room(
        (
            *("handlers/tasks/object_detection.py", "handlers/vision/boxes.py", "handlers/vision/pixel_detector.py"),
            *(
                "deploy/archives/tasks/object_detection.py",
                "examples/object-detection/",
            ),
            "docs/reference/tasks/object-detection.md",
        ),
        (("examples/models.yaml", r"object-detection:\n(?: .*\n)+"),),
    ),
}


def with_above(name: str) -> list[str]:
    return [name, *(each for above in ROOMS[name].above for each in with_above(above))]


@functools.cache
def tracked() -> list[str]:
    """Return the files of the tree, new ones too."""
    words = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({name for name in listed if name and (ROOT / name).is_file()})


def is_in(name: str, paths: Iterable[str]) -> bool:
    return any(name.startswith(path) if path.endswith("/") else name == path for path in paths)


def removed_files(rooms: Iterable[str]) -> list[str]:
    """Return the files of parts; each path must exist."""
    paths = [path for room in rooms for path in ROOMS[room].paths]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    return [name for name in tracked() if is_in(name, paths)]


def module_of(name: str) -> str:
    return name.removeprefix("client/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the absolute names that the imports of a file have, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Return the modules of this project that a file imports, anywhere, or names in a string."""

    tree, known = ast.parse((ROOT / name).read_text(encoding="utf-8")), modules()
    texts = (str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = (each for text in texts for each in re.findall(r"^(?:deploy|handlers|load)(?:\.\w+){2,}(?=:|$)", text))
    parents = ((each, each.rpartition(".")[0]) for each in (*imported(tree), *named) if each.split(".")[0] in HOUSE)
    return frozenset(next((each for each in pair if each in known), pair[0]) for pair in parents)


@functools.cache
def modules() -> dict[str, str]:
    return {module_of(name): name for name in tracked() if name.endswith(".py")}


def find_leftovers(rooms: Iterable[str]) -> list[str]:
    """Return the imports of removed modules that remain in the source."""
    removed = {*removed_files(rooms)}
    gone = {module_of(name) for name in removed if name.endswith(".py")}
    cut = {name for room in rooms for name, _ in ROOMS[room].cuts}
    remaining = (name for name in tracked() if name.endswith(".py") and name.startswith((*SOURCE, "docs")))
    left = (name for name in remaining if name not in removed and name not in cut)
    return [f"{name} imports {module}" for name in left for module in imports(name) & gone]


def find_tests(gone: set[str]) -> set[str]:
    """Return the tests that import removed modules, directly or through helpers."""
    tests, found = {name for name in modules().values() if name.startswith("tests/")}, set[str]()
    while more := {name for name in tests - found if imports(name) & gone}:
        found |= more
        gone = gone | {module_of(name) for name in more}
    return found


def leave_out(rooms: Iterable[str], target: Path) -> None:
    """Copy the tree without parts, their registrations and their tests."""
    removed = {*removed_files(rooms)}
    removed |= find_tests({module_of(name) for name in removed if name.endswith(".py")})
    for name in (each for each in tracked() if each not in removed):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).stat().st_size > LINKED_BYTES:
            (target / name).symlink_to(ROOT / name)
        else:
            shutil.copy(ROOT / name, target / name)
    for name, pattern in (cut for room in rooms for cut in ROOMS[room].cuts):
        if (target / name).exists():
            text, count = re.subn(pattern, "", (target / name).read_text(encoding="utf-8"))
            assert count, f"{name} has no {pattern}"
            (target / name).write_text(text, encoding="utf-8")
