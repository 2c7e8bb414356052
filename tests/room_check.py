"""A program: whether copies of the tree work. It imports nothing of this project, which each copy has.

COPY... -> a child of each: import every module, format the help of every command -> {COPY: problems}
           the last one lacks every optional part: its tests are collected, and those of the core run
"""

import argparse
import contextlib
import faulthandler
import importlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest

# Packages that take most of the seconds of an import: one process imports them, and its children have them.
# Only packages without threads: a child has none of its parent's.
SLOW = ("torch", "torchvision", "transformers.models.auto", "sklearn.linear_model", "aiohttp.web", "openvino")
SLOW += ("playwright.sync_api", "plotly.graph_objects", "pydantic", "requests", "tritonclient.grpc", "uvicorn")
# Seconds after which a child prints its stacks and ends.
CHILD_S = 400
# Tests of the core that run without any optional part.
CORE = ("tests/handlers/pipeline", "tests/handlers/test_config.py", "tests/deploy/archives/test_archive.py::test_model")
PACKAGES = {"handlers": ".", "deploy": ".", "load": ".", "torchserve_client": "client", "docs": "."}


class HelpPrinted(Exception):
    """Ends a command that was about to parse its arguments, and whose help was formatted."""


def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
    parser.format_help()
    raise HelpPrinted


def find_problems(copy: Path) -> list[str]:
    problems = []
    for package, folder in PACKAGES.items():
        for path in sorted((copy / folder / package).rglob("*.py")):
            name = ".".join(path.relative_to(copy / folder).with_suffix("").parts).removesuffix(".__init__")
            try:
                module = importlib.import_module(name)
                if path.name == "__main__.py" and hasattr(module, "main"):
                    with patch.object(argparse.ArgumentParser, "parse_args", stop):
                        module.main(*([[]] if module.main.__code__.co_argcount else []))
            except HelpPrinted:
                continue
            except Exception as error:
                # Packages of other environments, such as Ray, may be missing.
                missing = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else "tests"
                if missing in (*PACKAGES, "tests"):
                    problems.append(f"{name}: {type(error).__name__}: {error}")
    return problems


class Selection:
    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.nodeid.startswith(CORE)]


def run_tests(copy: Path) -> list[str]:
    quiet = ["-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        code = pytest.main(["-q", "-x", *quiet, str(copy / "tests")], [Selection()])
    return [] if code == 0 else [printed.getvalue()[-3000:]]


def main(copies: list[str]) -> None:
    for name in SLOW:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)
    results = {}
    for copy in (Path(name).resolve() for name in copies):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            faulthandler.dump_traceback_later(CHILD_S, exit=True)
            os.chdir(copy)
            sys.path[:1] = [str(copy), str(copy / "client")]
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                json.dump(find_problems(copy) + (run_tests(copy) if copy.name == Path(copies[-1]).name else []), pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        results[copy.name] = json.loads(answer) if answer else ["the child died"]
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
