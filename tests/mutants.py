"""`make mutants`: puts small faults into copies of the repository, one at a time; prints those that no test notices.

check and builds once, under coverage -> build/mutants: the tests of each line; a sample of faults by the seed -> in a
clone: write the fault, run the line's tests until one fails, which passes without the fault
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import util
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import coverage
import psutil
import pytest

ROOT = Path(__file__).parents[1]
MUTATED = r"(handlers|client|deploy|load|torchserve_batching)/(?!bench/|project/).*(?<!_pb2)\.py$"
RULES = """[run]
parallel = true
sigterm = true
data_file = {clone}/data
context = ${{PYTEST_CURRENT_TEST-}}
include = */handlers/**, */client/**, */deploy/**, */load/**, */torchserve_batching/**
omit = */site-packages/*
"""
MEASURED = ["-n", "auto", "--dist", "loadfile", "tests", "--ignore", "tests/e2e", "--ignore", "tests/nightly"]
FIRST_S, ALL_S = 6, 40  # of the tests of a fault: the first notice most faults
HANGS_S = 120  # of a test, beside four times its own: a fault may turn in circles
RUNNING, IMPORT = "running", "at import"
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not"},
    **{ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and"},
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
}
WORDS = {"min": "max", "max": "min", "any": "all", "all": "any", "True": "False", "False": "True"}
seconds = Counter[str]()  # of each test
executed: dict[str, dict[str, list[str]]] = {}  # file -> line -> tests; "": at import


class Mutant(NamedTuple):
    file: str
    lines: tuple[int, int]  # of the statement, or of its head
    kind: str
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the file with the fault; nothing if it is not valid Python or changes nothing."""
        text = source[: self.start] + self.new.encode() + source[self.end :]
        with suppress(SyntaxError):
            return text if ast.dump(ast.parse(text)) != ast.dump(ast.parse(source)) else b""
        return b""


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
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() if not text(node).startswith("logger."):
            yield "dropped call", node, node, "pass"
        case ast.Return(value=ast.AST() as value) if text(value) != "None":
            yield "return value", node, node, "return None"
        case ast.Try(finalbody=[_, *_]):
            caught = node.handlers or [ast.ExceptHandler(ast.Tuple([], ast.Load()), None, [ast.Pass()])]
            yield "finally", node, node, text(ast.Try(node.body, caught, [*node.orelse, *node.finalbody], []))
        case ast.Call(args=[first, second, *_]) if text(node.func) not in WORDS and text(first) != text(second):
            yield "argument order", first, second, f"{text(second)}, {text(first)}"
        case ast.Call(keywords=[*others, ast.keyword(arg=str())]):
            yield "dropped argument", node, node, text(ast.Call(node.func, node.args, others))


def find_mutants(file: str) -> Iterator[Mutant]:
    """Yield the faults of a file, none of them in annotations and decorators; a few are not valid Python."""
    source = (ROOT / file).read_bytes()
    starts, tree = [0, *(match.end() for match in re.finditer(b"\n", source))], ast.parse(source)
    typed = [getattr(node, name, None) for node in ast.walk(tree) for name in ("annotation", "returns")]
    typed += [each for node in ast.walk(tree) for each in getattr(node, "decorator_list", [])]
    hidden = {id(each) for part in typed if part for each in ast.walk(part)}
    lines = dict[int, tuple[int, int]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            inner = [each.lineno for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            ends = max(node.lineno, min(inner) - 1) if inner else node.end_lineno or node.lineno
            lines |= {id(each): (node.lineno, ends) for each in ast.walk(node)}  # an inner statement comes later
        for kind, first, last, new in [] if id(node) in hidden else _changes(node):
            start, end = starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset
            yield Mutant(file, lines[id(node)], kind, start, end, new.replace("\n", "\n" + " " * first.col_offset))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Write down which test runs, also for coverage; this module is a plugin of the pytest that it starts, too."""
    Path(RUNNING).write_text(item.nodeid)
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if chosen := {*os.environ.get("CHOSEN", "").splitlines()}:
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] += report.duration  # type: ignore[assignment] # a Counter of fractions


def pytest_sessionfinish(session: pytest.Session) -> None:
    if measured := coverage.Coverage.current():
        measured.save()  # a process of xdist does not at its end
        if not hasattr(session.config, "workerinput"):
            Path("seconds").write_text(json.dumps(seconds))


def git(*words: str | Path) -> list[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


def make_clone(folder: str, commit: str) -> Path:
    """Copy the files that git knows."""
    clone = Path(tempfile.mkdtemp(dir=folder), "clone")
    git("clone", "--quiet", "--shared", ROOT, clone)
    git("-C", clone, "checkout", "--quiet", "--detach", commit)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    return clone


def start_tests(clone: Path, words: list[str], **variables: str) -> "subprocess.Popen[bytes]":
    own = {"TMPDIR": str(clone.parent), "PYTHONPATH": f"{clone}:{clone}/client", "OMP_NUM_THREADS": "1"}
    own["PYTEST_CURRENT_TEST"] = ""  # that of the nightly run
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tests.mutants", *words],
        cwd=clone, env={**os.environ, **own, **variables}, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def measure(clone: Path, result: Path) -> None:
    """Store the seconds of each test, and the tests that execute a line, in processes and archives, too."""
    found = defaultdict[str, Any](lambda: defaultdict(set))
    (clone / "rules").write_text(RULES.format(clone=clone))
    (clone / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    start_tests(clone, MEASURED, COVERAGE_PROCESS_START=f"{clone}/rules").wait()
    files = {each for each in git("ls-files") if re.match(MUTATED, each)}
    for path in clone.glob("data.*"):
        (data := coverage.CoverageData(str(path))).read()
        for measured in data.measured_files():
            ends = ("/".join(Path(measured).parts[n:]) for n in range(len(Path(measured).parts)))
            if file := next((each for each in ends if each in files), ""):
                for line, tests in data.contexts_by_lineno(measured).items():
                    found[file][line] |= {re.sub(r" \(\w+\)$", "", test) for test in tests}
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps([json.loads((clone / "seconds").read_text()), found], default=sorted))


def module_of(test: str) -> str:
    return test.partition("::")[0]


def choose_tests(mutant: Mutant) -> list[list[str]]:
    """Return the tests that run first, and the others: the quick ones of the line, then others of their modules."""
    lines, own = executed.get(mutant.file, {}), Path("tests", mutant.file.replace("torchserve_client/", ""))
    near = {test for line in range(mutant.lines[0], mutant.lines[1] + 1) for test in lines.get(str(line), [])}
    near |= {*itertools.chain(*lines.values())} if "" in near else set()  # whatever runs the file imports the line
    modules = {*map(module_of, near), str(own.with_name(f"test_{own.name}"))}
    takes_s, parts = 0.0, ([], [])  # type: ignore[var-annotated]
    for test in sorted(seconds, key=lambda test: (test not in near, seconds[test])):
        if module_of(test) in modules and takes_s + seconds[test] < ALL_S:
            takes_s += seconds[test]
            parts[takes_s > FIRST_S].append(test)
    return [part for part in parts if part]


def find_failed(clone: Path, tests: list[str]) -> str:
    """Run tests until one fails or hangs; return that one, or ""."""
    (path := clone / RUNNING).write_text(running := IMPORT)
    modules = dict.fromkeys(map(module_of, tests))
    process = start_tests(clone, ["-n", "0", "-x", "-p", "no:cacheprovider", *modules], CHOSEN="\n".join(tests))
    began_s = time.monotonic()
    while process.poll() is None and time.monotonic() < began_s + HANGS_S + 4 * seconds[running]:
        time.sleep(0.1)
        if running != (running := path.read_text()):
            began_s = time.monotonic()
    for each in psutil.process_iter():  # a fault may leave processes of any session
        with suppress(psutil.Error):
            if each.environ().get("TMPDIR", "").startswith(str(clone.parent)):
                each.kill()
    return "" if process.wait() in (0, 5) else path.read_text()


def try_out(mutant: Mutant, clones: "Queue[Path]") -> str:
    """Return the test that notices a fault, or ""."""
    clone = clones.get()
    path = clone / mutant.file
    original = path.read_bytes()

    def failed(tests: list[str], source: bytes) -> str:
        path.write_bytes(source)
        Path(util.cache_from_source(path)).unlink(missing_ok=True)  # it may have the size and second of the last
        return find_failed(clone, tests)

    def find() -> str:
        for part in choose_tests(mutant):
            while part and (found := failed(part, mutant.apply(original))):
                again = part if found == IMPORT else [found]
                if failed(again, original) != found and failed(again, mutant.apply(original)) == found:
                    return found
                part[:] = [test for test in part if test not in again]  # it fails without the fault, too, or by chance
        return ""

    try:
        return find()
    finally:
        path.write_bytes(original)
        clones.put(clone)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="after these, no fault is begun")
    parser.add_argument("--base", help="revision: only the files that differ from it")
    parser.add_argument("--map", type=Path, help="which tests execute a line; default: of these files")
    parser.add_argument("files", nargs="*", help="files and folders; default: all")
    options = parser.parse_args(arguments)
    words = ["diff", "--name-only", "--diff-filter=d", options.base] if options.base else ["ls-files", *options.files]
    found = [each for file in git(*words) if re.match(MUTATED, file) for each in find_mutants(file)]
    random.Random(options.seed).shuffle(found)
    valid = (mutant for mutant in found if mutant.apply((ROOT / mutant.file).read_bytes()))
    sample, ends_s = [*itertools.islice(valid, options.number)], time.monotonic() + 60 * options.minutes
    git("status", "--porcelain")  # else `stash` fails over files that were written again and are as before
    commit, clones, noticed = [*git("stash", "create"), "HEAD"][0], Queue[Path](), list[bool]()
    path = options.map or ROOT / "build" / "mutants" / f"{git('rev-parse', commit + '^{tree}')[0]}.json"
    count = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as folder:
        if not path.exists():
            print(f"the tests of each line -> {path}: check and builds run once", file=sys.stderr)
            measure(make_clone(folder, commit), path)
        for store, stored in zip((seconds, executed), json.loads(path.read_text()), strict=True):
            store.update(stored)  # type: ignore[attr-defined]
        for _ in range(count):
            clones.put(make_clone(folder, commit))
        with ThreadPoolExecutor(count) as pool:
            for mutant, test in zip(sample, pool.map(try_out, sample, itertools.repeat(clones)), strict=False):
                noticed.append(bool(test))
                print(f"{mutant.file}:{mutant.lines[0]} {mutant.kind}: {test or f'SURVIVED: {mutant.new}'}", flush=True)
                if time.monotonic() > ends_s:
                    pool.shutdown(cancel_futures=True)
                    break
    share = 100 * sum(noticed) / max(1, len(noticed))
    print(f"noticed: {sum(noticed)} of {len(noticed)}, {share:.0f} %; {len(found)} faults, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
