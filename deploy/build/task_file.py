"""A user's file with a task of their own, checked without running it.

TorchServe's rules for such a file are strict and its errors are not: it imports the file under its own name, before the
standard library, and serves the only class that the module defines, or a function `handle` where there is one.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

from deploy.models import ROOT
from handlers.errors import InvalidConfig

# What binds names of its own, and what binds none.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task's file as its text shows it.

    Attributes:
        class_name: the name of its one class.
        attributes: the source of what the class assigns to each of its names.
        staged_files: names or patterns of the files that it wants in the archive.
    """

    class_name: str
    attributes: dict[str, str]
    staged_files: tuple[str, ...]


def read(path: Path) -> TaskFile:
    """Read a task's file and hold what it defines against TorchServe's rules.

    Raises:
        InvalidConfig: it breaks one of them; the message is one line.
    """
    try:
        module = ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InvalidConfig(f"{path.name}{place}: {getattr(error, 'msg', error)}") from None
    statements = list(_top_level(module.body))
    if "handle" in {name for statement in statements for name in _bound(statement)}:
        raise InvalidConfig(f"{path.name}: `handle` at its top level would be served instead of the class; rename it")
    classes = [statement for statement in statements if isinstance(statement, ast.ClassDef)]
    if len(classes) != 1:
        names = f" ({', '.join(found.name for found in classes)})" if classes else ""
        raise InvalidConfig(
            f"{path.name}: it holds {len(classes) or 'no'} class{'es' if classes else ''}{names}; a task's file holds "
            "exactly one, on BatchHandler; others may stand inside that one"
        )
    (found,) = classes
    if not found.bases:
        raise InvalidConfig(f"{path.name}: {found.name} is no BatchHandler")
    values = dict(_assigned(found))
    attributes = {name: ast.unparse(value) for name, value in values.items()}
    return TaskFile(found.name, attributes, _staged_files(path, values.get("staged_files")))


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


def _top_level(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every statement that runs when the module is imported, those within `if` and `try` included."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.Tuple) or not isinstance(statement, SCOPES):
            yield from _top_level(ast.iter_child_nodes(statement))


def _bound(statement: ast.AST) -> Iterator[str]:
    """The names that a statement gives to something."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=asname):
            yield asname or name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name


def _assigned(found: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for statement in found.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _staged_files(path: Path, value: ast.expr | None) -> tuple[str, ...]:
    """What the class wants staged: read from the text, so that finding an archive up to date imports nothing."""
    if value is None:
        return ()
    try:
        names = ast.literal_eval(value)
    except ValueError:
        names = None
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        raise InvalidConfig(f"{path.name}: staged_files must be written out, as in ('palette.csv', 'data/*.npy')")
    for name in names:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidConfig(f"{path.name}: staged_files: {name} leaves the folder of the model")
    return tuple(names)
