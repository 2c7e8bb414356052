"""Files that a list or a model's configuration names: beside the configuration, or inside an installed package."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.models import Model
from handlers.errors import InvalidConfig


def in_package(package: str, file: str) -> Path | None:
    """Give the place of a file or folder inside a package, which is not imported; None where there is no package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / file


def named_by(model: Model, setting: str) -> Path | None:
    """Find the file that a setting under `handler:` names: `NAME` beside the configuration, or {package, file}.

    Returns:
        The file; None where the setting is left out, or is none of both, which whoever parses the settings says.

    Raises:
        InvalidConfig: there is no such package or file.
    """
    value: Any = (model.config().get("handler") or {}).get(setting)
    path: Path | None
    if isinstance(value, str):
        path, place = model.folder / value, f"{model.folder.name}/{value}"
    elif isinstance(value, Mapping) and value.keys() == {"package", "file"}:
        path = in_package(str(value["package"]), str(value["file"]))
        place = f"{value['file']} in a package {value['package']}"
    else:
        return None
    if path is None or not path.is_file():
        raise InvalidConfig(f"{model.name}: {setting}: no file {place}")
    return path
