"""The command `torchserve-batching init DIR`: your own project, with one task.

--with PART            also files for production, with the paths and the user of this installation
--task T --weights W   the list and the settings of your own model in place of the example
"""

import argparse
import getpass
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from deploy.command import CommandParser, run_command
from deploy.places import ROOT
from deploy.progress import printable
from deploy.work_folders import make_work_folder, remove_ended
from torchserve_client.version import VERSION

EXAMPLE = ("colour*", "hex_*", "tests")  # files of the project that are an example's
LIST = "# Raise `version` with each change, so that servers can go back to the one before.\n"
CONFIG = "responseTimeout: 60\n"
ARCH = "# handler: {arch: resnet50} # the network, which a checkpoint of torchvision needs\n"
# Part -> path in the installation -> path in the project.
PARTS = {
    "container": {"container/Containerfile": "Containerfile"},
    "gateway": {"deploy/gateway.yaml": "gateway.yaml"},
    "monitoring": {
        "deploy/prometheus/prometheus.yml": "monitoring/prometheus.yml",
        "deploy/prometheus/rules": "monitoring/rules",
        "deploy/grafana": "monitoring/grafana",
    },
    "production": {"config.production.properties": "config.production.properties"},
    "systemd": {"deploy/nodes/run/systemd": "systemd"},
}
ADAPT = re.compile(r" Adapt User and the paths: /srv/torchserve\n# is your project[^\n]*|Documentation=file:[^\n]*\n")
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


def _write(folder: Path, parts: Sequence[str], model: "OwnModel | None") -> None:
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


def write_parts(names: Iterable[str], new: Path, folder: Path) -> None:
    """Write parts into the folder `new`, whose files will be in `folder`."""
    for name in names:
        for source, place in PARTS[name].items():
            path = Path(__file__).parent / source if name == "container" else ROOT / source
            (new / place).parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, new / place, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(path, new / place)
    program, here = shutil.which("torchserve-batching") or f"{sys.executable} -m torchserve_batching", folder.resolve()
    replaced = {
        "/srv/torchserve/.venv/bin/torchserve-batching": program,
        "/srv/torchserve": str(here),
        "User=torchserve": f"User={getpass.getuser()}",
        "torchserve-batching==VERSION": f"torchserve-batching=={VERSION}",
        "gateway:8002": "localhost:8002",  # a service of compose, as the next one
        "//prometheus:9090": "//localhost:9090",
        "/etc/grafana/dashboards": str(here / "monitoring" / "grafana" / "dashboards"),
    }
    for path in new.rglob("*"):
        if path.suffix in (".service", ".yml") or path.name == "Containerfile":
            text = ADAPT.sub("", path.read_text(encoding="utf-8"))
            for old, own in replaced.items():
                text = text.replace(old, own)
            path.write_text(text, encoding="utf-8")


class OwnModel(NamedTuple):
    task: str
    weights: str

    def write(self, folder: Path) -> None:
        """Write them into a folder; ValueError, with one line, if the task or the weights do not exist."""
        from deploy.archives.tasks import BUILT_IN  # noqa: PLC0415

        if (task := BUILT_IN.get(self.task)) is None:
            raise ValueError(f"--task {self.task} is not one of {', '.join(BUILT_IN)}")
        path = Path(self.weights)
        weights: str | dict[str, str] = str(path.resolve())
        if task.takes_hub_ids and not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", self.weights):
            weights = {"hub": self.weights}
        elif not path.exists():
            raise ValueError(f"--weights {self.weights}: no such file or folder")
        name = re.sub(r"[^\w-]+", "-", path.stem if path.is_file() else path.name).strip("-") or self.task
        entry = {name: {"task": self.task, "version": "1.0", "weights": weights}}
        (folder / "models.yaml").write_text(LIST + yaml.safe_dump(entry, sort_keys=False), encoding="utf-8")
        has_arch = path.is_file() and any(task.replaces)  # by networks of torchvision
        (folder / name).mkdir()
        (folder / name / "model-config.yaml").write_text(CONFIG + (ARCH if has_arch else ""), encoding="utf-8")
