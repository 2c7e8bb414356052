"""The packages that an archive needs.

requirements: [scipy>=1.11] | FILE -> lines -> installed here, or one line with the command -> build.json -> each worker
"""

import shlex
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from deploy.models import ModelEntry
from handlers.archive_files import find_missing
from handlers.errors import InvalidConfig

FILE = "requirements.txt"


def list_requirements(model: ModelEntry) -> tuple[str, ...]:
    """List the entry's requirements, or those of the project for a task in a file; InvalidConfig names a wrong one."""
    own: str | tuple[str, ...] = model.requirements
    if not own and model.handler.endswith(".py") and (model.folder.parent / FILE).is_file():
        own = FILE
    lines = _read(model, model.folder.parent / own) if isinstance(own, str) and own else tuple(own)
    for line in lines:
        try:
            Requirement(line)
        except InvalidRequirement as error:
            reason = str(error).partition("\n")[0]
            raise InvalidConfig(
                f"{model.name}: requirements: {line}: {reason}; expected a package, such as scipy>=1.11"
            ) from None
    return tuple(line for line in lines if (marker := Requirement(line).marker) is None or marker.evaluate())


def _read(model: ModelEntry, path: Path) -> tuple[str, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidConfig(f"{model.name}: requirements: no file {path.name} beside the list") from None
    lines = (line.partition(" #")[0].partition(" --")[0].strip() for line in text.replace("\\\n", " ").splitlines())
    return tuple(line for line in lines if line and not line.startswith(("#", "-")))


def check_installed(model: ModelEntry) -> None:
    """Raise InvalidConfig with the command if this environment lacks a requirement."""
    if missing := find_missing(list_requirements(model)):
        raise InvalidConfig(
            f"{model.name}: requirements: not installed here: {', '.join(missing)}; {install(*missing)}"
        )


def install(*packages: str) -> str:
    """Return the command that installs packages into this environment."""
    return f"{sys.executable} -m pip install {shlex.join(each.partition(' (')[0] for each in packages)}"
