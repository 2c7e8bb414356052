"""A user's file with their own task, and the modules beside it, read as text.

The check whether an archive is up to date imports no code.
`deploy.archives.custom` imports the file and checks its class.
"""

import ast
import sys
import sysconfig
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

from deploy.models import ROOT
from handlers.errors import InvalidConfig

# The packages that every archive has, or that tests import; a folder of the user's may have these names.
OWN = {"handlers", "deploy", "load", "torchserve_client", "torchserve_batching"}


def read_attributes(path: Path) -> dict[str, str]:
    """Return the source of each attribute of the file's class; InvalidConfig if the file is not valid Python."""
    found = {}
    for statement in _find_task(_parse(path)):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                found[name] = ast.unparse(value)
    return found


def _find_task(module: ast.Module) -> list[ast.stmt]:
    classes = [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    # The outermost classes come first, and the task has a base that names BatchHandler, unless it has a base between.
    task = next((node for node in classes if "BatchHandler" in map(_name_base, node.bases)), next(iter(classes), None))
    return task.body if task else []


def check_reads(path: Path, replaced: Mapping[str, str]) -> None:
    """Raise InvalidConfig if methods of the file's class read attributes of a former base class."""
    files = [_parse(each) for each in (path, *find_helpers(path).values()) if each.suffix == ".py"]
    found = [node for file in files for node in ast.walk(file) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in found if isinstance(node.ctx, ast.Store)}
    methods = [each for each in _find_task(files[0]) if isinstance(each, ast.FunctionDef)]
    own |= {each.name for each in methods}
    for node in (node for method in methods for node in ast.walk(method)):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in replaced and name not in own:
                raise InvalidConfig(f"{path.name}:{node.lineno}: self.{name} is replaced by {replaced[name]}")


def _name_base(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base).rpartition(".")[2]


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


def find_helpers(path: Path) -> dict[str, Path]:
    """Find the modules and packages beside a task's file that it imports, by their paths in the archive."""
    folder, found, left = path.parent, dict[str, Path](), [path]
    while left:
        for name in _list_imports(left.pop()):
            module, package = folder / f"{name}.py", folder / name
            files = list_files(package)
            if not any(file.suffix == ".py" for file in files):
                files = [module] if module.is_file() else []
            new = [file for file in files if file != path and file not in found.values()]
            if new:
                check_module(module)
                found |= {file.relative_to(folder).as_posix(): file for file in new}
                left += [file for file in new if file.suffix == ".py"]
    return found


def list_files(folder: Path) -> list[Path]:
    """List the files of a folder at any depth, without hidden ones and compiled Python."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if not any(map(is_hidden, path.relative_to(folder).parts))]


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _list_imports(path: Path) -> set[str]:
    """Return the first names of the modules that a file imports anywhere, without this project's own."""
    found = set()
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return {name.partition(".")[0] for name in found} - OWN


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), path.name)
    except (SyntaxError, ValueError) as error:
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InvalidConfig(f"{path.name}{place}: {getattr(error, 'msg', error)}") from None


def check_module(path: Path) -> None:
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
