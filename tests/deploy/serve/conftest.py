"""A process of `python -m deploy.serve` with a function that takes 0.2 s."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry
from tests.hosts import Host, is_ready, run_hosts, start
from tests.waiting import until

INFER = """
import os, time

time.sleep(float(os.environ.get("LOADS", 0)))

def infer(x):
    time.sleep(0.2)
    return {"y": x * 2}
"""


def number_archive(name: str, infer: str, folder: Path) -> Path:
    """Build the archive of a function from a whole number to another one."""
    tensors = {kind: {name: {"datatype": "INT64", "shape": [-1]}} for kind, name in (("inputs", "x"), ("outputs", "y"))}
    config = yaml.safe_dump({"handler": {"max_batch_items": 1, **tensors}})
    (own := folder / name).mkdir()
    for file, text in {"infer.py": infer, "model-config.yaml": config, "sample.json": '{"x": 1}'}.items():
        (own / file).write_text(text)
    entry = ModelEntry(name, "tensors", "1.0", own, {"path": "infer.py"})
    return Recipe(entry, engine="auto", export_path=folder / "store").build().path


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_archive("colours", INFER, tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def served(archive: Path) -> Iterator[Host]:
    """A process with the default limits, which no test ends."""
    with run_hosts(archive) as (host,):
        yield host


@pytest.fixture
def serve(archive: Path, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    started: list[Host] = []

    def run(**limits: float) -> Host:
        config = tmp_path / "limits.yaml"
        config.write_text(yaml.safe_dump(limits))
        started.append(start(archive, "--config", config))
        until(lambda: is_ready(started[-1]))
        return started[-1]

    yield run
    for host in started:
        host.kill()
