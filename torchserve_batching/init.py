"""The command `torchserve-batching init DIR`: your own project, with one task."""

import argparse
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from deploy.command import CommandParser, run_command
from deploy.progress import printable
from deploy.work_folders import make_work_folder, remove_ended
from torchserve_batching.parts import EXAMPLE, PARTS, OwnModel, write_parts
from torchserve_client.version import VERSION

PROJECT = Path(__file__).with_name("project")
WORK = ".init-"  # the start of the name of a folder of work
PAGE = "docs/how-to/production.md"
WORKFLOW = Path(".github", "workflows", "models.yml")


class NotWritten(Exception):
    """The project cannot be written; the message is one line."""


def main(arguments: list[str]) -> int:
    """Write the project that the command line names."""
    parser = CommandParser(
        prog="torchserve-batching init",
        description="Write a project: models.yaml, a task with settings and options, its test and a workflow.",
        examples=[
            "torchserve-batching init shop --task TASK --weights model.pt",
            "torchserve-batching init . --with systemd,monitoring",
        ],
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the project, made if it is missing")
    parts = f"also files for production, by commas: {', '.join(PARTS)}; a folder with models.yaml gets only them"
    parser.add_argument("--with", dest="parts", type=_read_parts, default=[], metavar="PART,...", help=parts)
    parser.add_argument("--task", metavar="TASK", help="task of your own model, in place of the example")
    parser.add_argument(
        "--weights", metavar="PATH|HUB_ID", help="weights of your own model: a file, a folder or a model of the hub"
    )
    options: argparse.Namespace = parser.parse_args(arguments)
    if (options.task is None) != (options.weights is None):
        parser.error("--task and --weights belong together")
    model = None if options.task is None else OwnModel(options.task, options.weights)
    return run_command("init", lambda: _write(options.folder, options.parts, model), NotWritten, OSError)


def _read_parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return names


def _write(folder: Path, parts: Sequence[str], model: OwnModel | None) -> None:
    """Write all files or none, none of them through a link; those of an interrupted call count as written."""
    parent = folder if folder.is_dir() else folder.parent
    made = _make_folders(parent)
    if parent == folder:
        # A call that made the folder and was killed then worked beside it.
        remove_ended(WORK, folder.resolve().parent)
    try:
        with make_work_folder(WORK, parent) as work:
            new = work / "project"
            if model or not parts or not (folder / "models.yaml").exists():
                ignore = shutil.ignore_patterns("__pycache__", *(EXAMPLE if model else ()))
                shutil.copytree(PROJECT, new, ignore=ignore, copy_function=shutil.copyfile)
                workflow = new / WORKFLOW
                workflow.write_text(workflow.read_text(encoding="utf-8").replace("VERSION", VERSION), encoding="utf-8")
            if model is not None:
                model.write(new)
            write_parts(parts, new, folder)
            if parent == folder:
                _add(new, folder)
            else:
                new.rename(folder)
    except ValueError as error:
        raise NotWritten(f"{printable(str(error))}; nothing is written") from None
    except OSError as error:
        raise NotWritten(f"{printable(str(folder))}: {error.strerror}; nothing is written") from None
    finally:
        _remove_empty(made)
    name = printable(shlex.quote(str(folder)))
    print(f"{name}: written; {'see ' + PAGE if parts else f'cd {name} && torchserve-batching serve'}")


def _add(new: Path, folder: Path) -> None:
    """Give files of a new folder their names in another one; after an error it is as before."""
    files = sorted(path.relative_to(new) for path in new.rglob("*") if path.is_file())
    missing = [file for file in files if not _is_written(new / file, folder / file, folder)]
    made: list[Path] = []
    try:
        for file in missing:
            made += _make_folders((folder / file).parent)
            _place(new / file, folder / file)
            made.append(folder / file)
    except OSError:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        raise


def _place(new: Path, place: Path) -> None:
    """Give a file a second name, which, unlike a rename, replaces nothing; or copy it, where files have one name."""
    try:
        place.hardlink_to(new)
    except FileExistsError:
        raise
    except OSError:
        with place.open("xb") as file:
            file.write(new.read_bytes())


def _is_written(new: Path, place: Path, folder: Path) -> bool:
    """Return whether a place has the file's content; NotWritten if it has another, or if the way there is a link."""
    for path in (place, *(each for each in place.parents if each.is_relative_to(folder) and each != folder)):
        is_fine = path.is_file() and path.read_bytes() == new.read_bytes() if path == place else path.is_dir()
        if path.is_symlink() or (os.path.lexists(path) and not is_fine):
            raise NotWritten(f"{printable(str(path))} exists; nothing is written: name another folder")
    return place.exists()


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; return those that were missing, the outermost first."""
    missing = [path for path in (*reversed(folder.parents), folder) if not os.path.lexists(path)]
    for path in missing:
        path.mkdir(exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for path in reversed(folders):
            path.rmdir()
