"""A process of `python -m deploy.hosts.serve` with a function that takes 0.2 s."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry
from handlers.archive_files import Build
from tests.hosts import Host, run_hosts, serving

INFER = """
import os, time

time.sleep(float(os.environ.get("LOADS", 0)))

def infer(x):
    time.sleep(0.2)
    return {"y": x * 2}
"""


def number_archive(name: str, infer: str, folder: Path, **settings: object) -> Path:
    """Build the archive of a function from a whole number to another one."""
    tensors = {kind: {name: {"datatype": "INT64", "shape": [-1]}} for kind, name in (("inputs", "x"), ("outputs", "y"))}
    config = yaml.safe_dump({"handler": {"max_batch_items": 1, **tensors, **settings}})
    (own := folder / name).mkdir()
    for file, text in {"infer.py": infer, "model-config.yaml": config, "sample.json": '{"x": 1}'}.items():
        (own / file).write_text(text)
    entry = ModelEntry(name, "tensors", "1.0", own, {"path": "infer.py"})
    return Recipe(entry, engine="auto", export_path=folder / "store").build().path


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of another release with the same format: its handlers differ from ours."""
    path, changed = number_archive("colours", INFER, tmp_path_factory.mktemp("colours")), "handlers/base.py"
    with ZipFile(path) as built:
        files = {name: built.read(name) for name in built.namelist()}
    files[changed] += b"# Changed.\n"
    build = Build.from_json(files["build.json"])
    sums = {**build.files, changed: hashlib.sha256(files[changed]).hexdigest()}
    files["build.json"] = replace(build, made_with="0.3.9", files=sums).to_json().encode()
    with ZipFile(path, "w") as other:
        for name, content in files.items():
            other.writestr(name, content)
    return path


@pytest.fixture(scope="module")
def served(archive: Path) -> Iterator[Host]:
    """A process with the default limits, which no test ends."""
    with run_hosts(archive) as (host,):
        yield host


@pytest.fixture
def serve(archive: Path, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(serving(archive, folder=tmp_path, **limits))
