"""The command `torchserve-batching init DIR`: your own project, with one task."""

import argparse
import shutil
from pathlib import Path

from deploy.command import CommandParser, run_command
from torchserve_client.version import VERSION

PROJECT = Path(__file__).with_name("project")
WORKFLOW = Path(".github", "workflows", "models.yml")


class NotWritten(Exception):
    """The project cannot be written; the message is one line."""


def main(arguments: list[str]) -> int:
    """Write the project that the command line names."""
    parser = CommandParser(
        prog="torchserve-batching init",
        description="Write a project: models.yaml, a task with settings and options, its test and a workflow.",
        examples=["torchserve-batching init demo", "torchserve-batching init ."],
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the project, made if it is missing")
    options: argparse.Namespace = parser.parse_args(arguments)
    return run_command("init", lambda: _write(options.folder), NotWritten, OSError)


def _write(folder: Path) -> None:
    files = [path for path in PROJECT.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    places = {path: folder / path.relative_to(PROJECT) for path in files}
    if taken := [place for place in places.values() if place.exists()]:
        raise NotWritten(f"{taken[0]} exists; nothing is written: name another folder")
    for path, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    workflow = folder / WORKFLOW
    workflow.write_text(workflow.read_text(encoding="utf-8").replace("VERSION", VERSION), encoding="utf-8")
    print(f"{folder}: written; cd {folder} && torchserve-batching serve")
