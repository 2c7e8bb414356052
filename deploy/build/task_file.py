"""A user's file with a task of their own, as its text shows it: whether an archive is up to date imports nothing.

What the file defines is checked as it is imported, by `deploy.build.stagers.custom`.
"""

import ast
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

from deploy.models import ROOT
from handlers.errors import InvalidConfig


def attributes(path: Path) -> dict[str, str]:
    """Return the source of what the file's class assigns to each of its names.

    Raises:
        InvalidConfig: it is no Python.
    """
    try:
        module = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InvalidConfig(f"{path.name}{place}: {getattr(error, 'msg', error)}") from None
    found = {}
    # The outermost class comes first.
    task = next((node for node in ast.walk(module) if isinstance(node, ast.ClassDef)), None)
    for statement in task.body if task else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = ast.unparse(value)
    return found


def staged_files(path: Path) -> tuple[str, ...]:
    """Return the names and patterns of the files that the class wants in the archive.

    Raises:
        InvalidConfig: it is no Python, they are computed, or one lies outside the model's folder.
    """
    if (text := attributes(path).get("staged_files")) is None:
        return ()
    try:
        names = ast.literal_eval(text)
    except ValueError:
        names = None
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        raise InvalidConfig(f"{path.name}: staged_files must be written out, as in ('palette.csv', 'data/*.npy')")
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidConfig(f"{path.name}: staged_files: {name} leaves the folder of the model")
    return tuple(names)


def check_name(path: Path) -> None:
    """Check that the file, at the root of an archive, hides no other module from the worker.

    Raises:
        InvalidConfig: it is named like a module that the worker needs, or its name is none.
    """
    name = path.stem
    if not name.isidentifier():
        raise InvalidConfig(f"{path.name}: {name} is no name of a Python module; use letters, digits and _")
    installed = PathFinder.find_spec(name, [sysconfig.get_paths()[key] for key in ("purelib", "platlib")])
    if name in sys.stdlib_module_names:
        owner = "a module of the standard library"
    elif (ROOT / name / "__init__.py").is_file():
        owner = "a package of this repository"
    elif installed is not None and installed.origin is not None:
        owner = "an installed package"
    else:
        return
    raise InvalidConfig(f"{path.name}: it is named like {owner}, which it would hide from the worker; rename it")
