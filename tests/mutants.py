"""`make mutants`: puts small faults into copies of the repository, one at a time; prints those that no test notices.

files -> find_mutants -> a sample by the seed -> in a clone: write, fork with all libraries, pytest, restore

The file's own test module runs first, then those near it: tier check, then builds.
"""

import argparse
import ast
import ctypes
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

ROOT = Path(__file__).parents[1]
MUTATED = r"(handlers|client|deploy|load(?!/bench)|torchserve_batching(?!/project))/.*(?<!_pb2)\.py$"
LIMIT_S = 200.0  # of a tier's tests with one mutant, which may turn in circles
LIBRARIES = """torch torchvision openvino ctranslate2.converters ts.torch_handler.base_handler transformers onnx grpc
pydantic hypothesis sentence_transformers PIL.Image aiohttp.web requests tritonclient.grpc uvicorn orjson"""
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not"},
    **{ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
}
WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}


class Mutant(NamedTuple):
    file: str
    line: int
    kind: str
    text: str  # of the whole file
    shown: str  # the lines that differ


def _changes(node: Any) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield the faults of a node: the kind, the first and the last node that are replaced, and the new text."""
    text = ast.unparse
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) | ast.BinOp(left=left, op=op, right=right):
            if type(op) in OPERATORS:
                yield "operator", node, node, f"(({text(left)}) {OPERATORS[type(op)]} ({text(right)}))"
        case ast.BoolOp(op=op, values=values):
            words = f" {OPERATORS[type(op)]} ".join(f"({text(each)})" for each in values)
            yield from (("operator", node, node, f"({words})"), ("condition", node, node, f"({text(values[0])})"))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, node, f"({text(operand)})"
        case ast.Constant(value=bool()) | ast.Name() if text(node) in WORDS:
            yield "constant", node, node, WORDS[text(node)]
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, node, str(value + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches", node, node, f"(({text(orelse)}) if ({text(test)}) else ({text(body)}))"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
            yield "dropped call", node, node, "pass"
        case ast.Return(value=ast.AST() as value) if text(value) != "None":
            yield "return value", node, node, "return None"
        case ast.Try(finalbody=[_, *_]):
            caught = node.handlers or [ast.ExceptHandler(ast.Tuple([], ast.Load()), None, [ast.Pass()])]
            yield "finally", node, node, text(ast.Try(node.body, caught, [*node.orelse, *node.finalbody], []))
        case ast.Call(args=[first, second, *_]) if text(first) != text(second):
            yield "argument order", first, second, f"{text(second)}, {text(first)}"
        case ast.Call(keywords=[*others, ast.keyword(arg=str())]):
            yield "dropped argument", node, node, text(ast.Call(node.func, node.args, others))


def find_mutants(file: str) -> Iterator[Mutant]:
    """Yield the mutants of a file, of one fault each, that are valid Python; none of its annotations."""
    source = (ROOT / file).read_bytes()
    starts, tree = [0, *(match.end() for match in re.finditer(b"\n", source))], ast.parse(source)
    typed = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    hidden = {id(each) for part in typed if part for each in ast.walk(part)}
    for node in ast.walk(tree):
        for kind, first, last, new in [] if id(node) in hidden else _changes(node):
            before = source[: starts[first.lineno - 1] + first.col_offset]
            after = source[starts[last.end_lineno - 1] + last.end_col_offset :]
            text = (before + new.replace("\n", "\n" + " " * first.col_offset).encode() + after).decode()
            with suppress(SyntaxError):
                if ast.dump(ast.parse(text)) != ast.dump(tree):
                    lines = difflib.unified_diff(source.decode().splitlines(), text.splitlines(), lineterm="", n=0)
                    yield Mutant(file, first.lineno, kind, text, "\n".join([*lines][3:]))


def order_tests(file: str) -> list[str]:
    """Return all test modules of both tiers: the file's own, those of its folder, and others by what paths share."""
    own = Path(file.replace("torchserve_client/", "")).with_suffix("")
    paths = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")]

    def distance(path: Path) -> tuple[bool, int, Path]:
        return path != own.with_name(f"test_{own.name}.py"), -len(os.path.commonpath([path.parent, own.parent])), path

    return [f"tests/{path}" for path in sorted(paths, key=distance) if path.parts[0] not in ("e2e", "nightly")]


def run_tests(tier: str, tests: list[str]) -> str:
    """Run pytest in a fork until its first failure; return the failed test, or "" if none failed in time."""
    ends_s, log, result, temporary = time.monotonic() + LIMIT_S, Path("mutant.log"), (0, 0), os.environ["TMPDIR"]
    if (pid := os.fork()) == 0:
        die_with_parent()
        code = 99
        with suppress(BaseException), log.open("w") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            options = ["-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60", "--tier", tier]
            code = pytest.main([*options, "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests])
        os._exit(code)
    while not result[0] and time.monotonic() < ends_s:
        time.sleep(0.05)
        result = os.waitpid(pid, os.WNOHANG)
    for process in psutil.process_iter():  # a mutant may leave processes of any session
        with suppress(psutil.Error):
            if process.pid == pid or process.environ().get("TMPDIR", "").startswith(temporary):
                process.kill()
    if not result[0]:
        os.waitpid(pid, 0)
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", log.read_text(errors="replace"), re.M)
    return "" if result[1] in (0, 4 << 8, 5 << 8) else failed[1] if failed else f"the process ended, {result[1]}"


def try_out(mutant: Mutant) -> str:
    """Return the test that notices a mutant in this process's clone, or ""."""
    path, tests = Path(mutant.file), order_tests(mutant.file)
    original = path.read_text()
    path.write_text(mutant.text)
    try:
        found = next(filter(None, (run_tests(tier, tests) for tier in ("check", "builds"))), "")
    finally:
        path.write_text(original)
    is_broken = "::" in found and any(run_tests(tier, [found]) for tier in ("check", "builds"))
    return f"fails without it, too: {found}" if is_broken else found


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux


def git(*words: str) -> list[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


def make_clone(folder: str) -> None:
    """Copy the work tree for a process of the pool, which works there from now on."""
    die_with_parent()
    clone = Path(tempfile.mkdtemp(dir=folder), "clone")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    for name in git("ls-files", "-mo", "--exclude-standard"):
        (clone / name).unlink(missing_ok=True)
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, clone / name)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    os.chdir(clone)
    os.environ |= {"TMPDIR": str(clone.parent), "PYTHONPATH": str(clone / "client"), "OMP_NUM_THREADS": "1"}
    sys.path[:0], tempfile.tempdir = [str(clone), str(clone / "client")], str(clone.parent)
    sys.modules.pop("tests", None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", help="revision: only the files that differ from it")
    parser.add_argument("files", nargs="*", help="files and folders; default: all")
    options = parser.parse_args(arguments)
    words = ["diff", "--name-only", "--diff-filter=d", options.base] if options.base else ["ls-files", *options.files]
    files = [each for each in git(*words) if re.match(MUTATED, each)]
    found = [each for file in files for each in find_mutants(file)]
    sample = random.Random(options.seed).sample(found, min(options.number, len(found)))
    for name in LIBRARIES.split():
        import_module(name)
    noticed, fork = list[bool](), get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder,
        ProcessPoolExecutor(os.cpu_count(), fork, make_clone, (folder,)) as pool,
    ):
        for mutant, test in zip(sample, pool.map(try_out, sample), strict=True):
            noticed.append(bool(test))
            print(f"{mutant.file}:{mutant.line} {mutant.kind}: {test or 'SURVIVED'}", flush=True)
            print("" if test else mutant.shown, end="" if test else "\n")
    share = 100 * sum(noticed) / max(1, len(noticed))
    print(f"noticed: {sum(noticed)} of {len(noticed)}, {share:.0f} %; {len(found)} mutants, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
