"""Write the entry of an old archive into the user's list, and print the source of each value."""

import shutil
import sys
import tempfile
from pathlib import Path

import torch
import yaml

from deploy.archives.old_archives import unpack
from deploy.migrate.move import Move, find_move
from deploy.models import STOCK, models
from handlers.errors import InvalidConfig
from torchserve_client.archives import check_name

CONFIG = "model-config.yaml"


def write_entry(source: Path, name: str | None, path: Path, *, is_stock: bool) -> tuple[str, bool]:
    """Write the entry of an old archive, and the folder of its model.

    Args:
        source: the old archive.
        name: of the model; None for the archive's own.
        path: the model list, which is made if it is missing.
        is_stock: whether the archive's own handler is to run.

    Returns:
        The model's name, and whether it can be built before its owner fills anything in.

    Raises:
        InvalidConfig: the archive cannot be moved, or the list or the folder has the name already; nothing is written.
    """
    with tempfile.TemporaryDirectory(prefix="torchserve-move-") as work:
        archive = unpack(source, Path(work))
        name = name or str(archive.manifest.get("modelName") or source.stem)
        try:
            check_name(name)
        except ValueError as error:
            raise InvalidConfig(f"{source}: {error}") from None
        if (path.exists() and name in models(path)) or (path.parent / name).exists():
            raise InvalidConfig(f"{name}: {path} or {path.parent}/{name} has it already; choose another name")
        print(f"{source.name}: its code is read as text and not run")
        try:
            move = find_move(name, archive, is_stock=is_stock)
        except InvalidConfig as error:
            raise InvalidConfig(f"{source}: {error}") from None
        _write(move, name, str(archive.manifest.get("modelVersion") or "1.0"), path)
    _print(move, name, path)
    return name, move.is_whole


def _write(move: Move, name: str, version: str, path: Path) -> None:
    folder, draft = path.parent / name, path.parent / move.handler
    if move.draft and draft.exists():
        raise InvalidConfig(f"{name}: {draft} is there already; rename it, or choose another name")
    settings = yaml.safe_load(str(move.files.pop(CONFIG, ""))) or {}
    if move.settings:
        settings["handler"] = move.settings
    for place, content in move.files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, folder / place)
        else:
            (folder / place).write_text(content, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    if move.state is not None:
        torch.save(move.state, folder / move.weights)
    if settings:
        (folder / CONFIG).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    if move.draft:
        draft.write_text(move.draft, encoding="utf-8")
    entry = {
        "handler": move.handler,
        "version": version,
        **({"weights": f"{name}/{move.weights}"} if move.weights else {}),
    }
    # Comments of the list stay as they are.
    with path.open("a", encoding="utf-8") as file:
        file.write(yaml.safe_dump({name: entry}, sort_keys=False))


def _print(move: Move, name: str, path: Path) -> None:
    rows = [
        ("setting", "value", "from"),
        ("handler", move.handler, "--stock" if move.handler == STOCK else "the archive's handler"),
        *move.sources,
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for setting, value, origin in rows:
        print(_printable(f"  {setting:{widths[0]}}  {value:{min(widths[1], 60)}}  {origin}"))
    print(f"{path}: {name}; {path.parent}/{name}/ has its files")
    for note in move.notes:
        print(_printable(f"{name}: {note}"), file=sys.stderr)
    if not move.is_whole:
        print(f"{name}: then build it: ./archive.sh {name} --models {path}")


def _printable(line: str) -> str:
    """Replace what moves a terminal's cursor: names and values are the old archive's."""
    return "".join(each if each.isprintable() else "?" for each in line)
