"""Write the entry of an old archive into the user's list, and print the source of each value."""

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import yaml

from deploy.archives.migrate.move import Move, find_move
from deploy.archives.old_archives import extract
from deploy.models import STOCK, models
from deploy.places import ARCHIVE
from deploy.progress import printable
from deploy.work_folders import make_work_folder, one_at_a_time
from deploy.yaml_text import parse_yaml
from handlers.errors import InvalidConfig, reason
from torchserve_client.archives import check_name
from torchserve_client.payloads import Json

CONFIG = "model-config.yaml"
# The endings of files beside a model list that programs read: other lists, settings, packages and tasks.
READ = (".yaml", ".yml", ".txt", ".py")


def write_entry(source: Path, name: str | None, path: Path, *, is_stock: bool) -> tuple[str, bool]:
    """Write the entry and the folder of an old archive, or nothing; return its name, and whether it can be built."""
    with make_work_folder("torchserve-move-", Path(tempfile.gettempdir())) as work:
        archive = extract(source, work)
        name = name or str(archive.manifest.get("modelName") or source.stem)
        version = str(archive.manifest.get("modelVersion") or "1.0")
        _check_names(source, name, version, path)
        print(f"{source.name}: its code is read as text and not run")
        try:
            move = find_move(name, archive, is_stock=is_stock)
        except InvalidConfig as error:
            raise InvalidConfig(f"{source}: {error}") from None
        except (ValueError, MemoryError, RecursionError) as error:
            raise InvalidConfig(f"{source}: cannot be read: {reason(error)}; add --stock to run it as it is") from None
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with make_work_folder(".move-", path.parent) as new, one_at_a_time(path.parent):
                _check_names(source, name, version, path)
                _write(move, name, version, path, new)
        finally:
            with suppress(OSError):  # empty, if the entry cannot be written
                path.parent.rmdir()
    _print(move, name, path)
    return name, move.is_whole


def _check_names(source: Path, name: str, version: str, path: Path) -> None:
    for value, remedy in ((name, "add another name to the command"), (version, "change it in its MANIFEST.json")):
        try:
            check_name(value)
        except ValueError as error:
            raise InvalidConfig(f"{source}: {error}; {remedy}") from None
    if name.startswith(".") or name == path.name or name.lower().endswith(READ):
        raise InvalidConfig(f"{source}: {name} may be a file that {path.parent} needs; add another name to the command")
    if name in _read_list(path)[1] or (path.parent / name).exists():
        raise InvalidConfig(f"{name}: {path} or {path.parent}/{name} has it already; choose another name")


def _write(move: Move, name: str, version: str, path: Path, new: Path) -> None:
    """Write all files into a new folder, and then rename them into place, the list last."""
    folder, draft = new / name, path.parent / move.handler
    if move.draft and draft.exists():
        raise InvalidConfig(f"{name}: {draft} is there already; rename it, or choose another name")
    settings = parse_yaml(str(move.files.pop(CONFIG, ""))) or {}
    if move.settings:
        settings["handler"] = move.settings
    folder.mkdir()
    for place, content in move.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, folder / place)
        else:
            (folder / place).write_text(content, encoding="utf-8")
    if move.state is not None:
        torch.save(move.state, folder / move.weights)
    if settings:
        (folder / CONFIG).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    entry = {
        "task": move.handler,
        "version": version,
        **({"weights": f"{name}/{move.weights}"} if move.weights else {}),
    }
    _add(path, {name: entry}, new / path.name)
    folder.rename(path.parent / name)
    if move.draft:
        (new / move.handler).write_text(move.draft, encoding="utf-8")
        (new / move.handler).rename(draft)
    (new / path.name).replace(path.resolve())


def _read_list(path: Path) -> tuple[str, Json]:
    """Read a model list, which may be missing or empty; InvalidConfig if it is not valid."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    with suppress(yaml.YAMLError):
        if parse_yaml(text) is None:
            return text, {}
    models(path)
    return text, parse_yaml(text)


def _add(path: Path, entry: Json, new: Path) -> None:
    """Write a list with one more entry: behind the others and their comments, or else a list without comments."""
    text, old = _read_list(path)
    behind = text + "\n" * (not text.endswith("\n")) if text else ""
    for before, entries in ((behind, entry), ("", old | entry)):
        new.write_text(before + yaml.safe_dump(entries, sort_keys=False), encoding="utf-8")
        with suppress(InvalidConfig):
            if _read_list(new)[1] == old | entry:
                return
    raise InvalidConfig(f"{path}: an entry of {[*entry]} cannot be added")


def _print(move: Move, name: str, path: Path) -> None:
    rows = [
        ("setting", "value", "from"),
        ("task", move.handler, "--stock" if move.handler == STOCK else "the archive's handler"),
        *move.sources,
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for setting, value, origin in rows:
        print(printable(f"  {setting:{widths[0]}}  {value:{min(widths[1], 60)}}  {origin}"))
    print(f"{path}: {name}; {path.parent}/{name}/ has its files")
    for note in move.notes:
        print(printable(f"{name}: {note}"), file=sys.stderr)
    if not move.is_whole:
        print(f"{name}: then build it: {ARCHIVE} {name} --models {path}")
