"""A user's file with their own task, read as text: the check whether an archive is up to date imports no code.

`deploy.archives.stagers.custom` imports the file and checks its class.
"""

import ast
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

from deploy.models import ROOT
from handlers.errors import InvalidConfig


def read_attributes(path: Path) -> dict[str, str]:
    """Return the source of each attribute of the file's class; InvalidConfig if the file is not valid Python."""
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


def read_staged_files(path: Path) -> tuple[str, ...]:
    """Return `staged_files` of the class: names and patterns of the files that belong into the archive."""
    if (text := read_attributes(path).get("staged_files")) is None:
        return ()
    try:
        names = ast.literal_eval(text)
    except ValueError:
        names = None
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        raise InvalidConfig(f"{path.name}: staged_files must be a literal, such as ('palette.csv', 'data/*.npy')")
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidConfig(f"{path.name}: staged_files: {name} is outside the model's folder")
    return tuple(names)


def check_name(path: Path) -> None:
    """Raise InvalidConfig if the file, at the root of an archive, would hide a module that the worker needs."""
    name = path.stem
    if not name.isidentifier():
        raise InvalidConfig(f"{path.name}: {name} is not a valid name of a Python module; use letters, digits and _")
    installed = PathFinder.find_spec(name, [sysconfig.get_paths()[key] for key in ("purelib", "platlib")])
    if name in sys.stdlib_module_names:
        owner = "a module of the standard library"
    elif (ROOT / name / "__init__.py").is_file():
        owner = "a package of this repository"
    elif installed is not None and installed.origin is not None:
        owner = "an installed package"
    else:
        return
    raise InvalidConfig(f"{path.name}: it has the name of {owner}, which it would hide from the worker; rename it")
