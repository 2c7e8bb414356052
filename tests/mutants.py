"""`make mutants`: puts small faults into copies of the repository, one at a time; prints those that no test notices.

check and builds once, under coverage -> build/mutants: the tests of each line; a sample of faults by the seed -> in a
clone: write the fault, fork with all libraries, run the line's tests until one fails, which passes without the fault
"""

import argparse
import ctypes
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
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module, util
from multiprocessing import get_context
from pathlib import Path
from signal import SIGKILL
from typing import Any

import coverage
import psutil
import pytest

from tests.faults import ROOT, Mutant, find_mutants

MUTATED = r"(handlers|client|deploy|load|torchserve_batching)/(?!bench/|project/).*(?<!_pb2)\.py$"
RULES = """[run]
parallel = true
sigterm = true
data_file = {clone}/data
context = ${{PYTEST_CURRENT_TEST-}}
include = */handlers/**, */client/**, */deploy/**, */load/**, */torchserve_batching/**
omit = */site-packages/*
"""
WORDS = "-m pytest -p tests.mutants -n auto --dist loadfile tests --ignore tests/e2e --ignore tests/nightly"
FIRST_S, ALL_S = 6, 40  # of the tests of a fault: the first notice most faults
HANGS_S, LIMIT_S = 60, 300  # of a test, beside four times its own, and of all; a fault may turn in circles
LIBRARIES = """torch torchvision openvino ctranslate2.converters ts.torch_handler.base_handler transformers onnx grpc
pydantic hypothesis sentence_transformers PIL.Image aiohttp.web requests tritonclient.grpc uvicorn orjson"""
FORK, CURRENT, IMPORT = get_context("fork"), Path("../current"), "at import"
seconds = Counter[str]()  # of each test
executed: dict[str, dict[str, list[str]]] = {}  # file -> line -> tests; "": at import


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Name the running test to coverage; as the next two, in the run that measures, with `-p tests.mutants`."""
    coverage.Coverage.current().switch_context(item.nodeid)  # type: ignore[union-attr]
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] += report.duration  # type: ignore[assignment] # a Counter of fractions


def pytest_sessionfinish(session: pytest.Session) -> None:
    coverage.Coverage.current().save()  # type: ignore[union-attr] # a process of xdist does not at its end
    if not hasattr(session.config, "workerinput"):
        Path("seconds").write_text(json.dumps(seconds))


class Chosen:
    """A plugin of pytest: runs these tests, and writes down which is running."""

    def __init__(self, tests: list[str]) -> None:
        self._tests = {*tests}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        CURRENT.write_text(nodeid)


def git(*words: str) -> list[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


def module_of(test: str) -> str:
    return test.partition("::")[0]


def enter_clone(folder: str, commit: str) -> None:
    """Copy the files that git knows for a process of the pool, which works there and ends with its parent."""
    ctypes.CDLL(None).prctl(1, SIGKILL)  # PR_SET_PDEATHSIG, of Linux
    clone = Path(tempfile.mkdtemp(dir=folder), "clone")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", "--detach", commit], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    os.chdir(clone)
    os.environ |= {"TMPDIR": str(clone.parent), "PYTHONPATH": f"{clone}:{clone}/client", "OMP_NUM_THREADS": "1"}
    sys.path[:0], tempfile.tempdir = [str(clone), str(clone / "client")], str(clone.parent)


def measure(result: Path) -> None:
    """Store the seconds of each test, and the tests that execute a line, in processes and archives, too."""
    clone, found = Path.cwd(), defaultdict[str, Any](lambda: defaultdict(set))
    Path("rules").write_text(RULES.format(clone=clone))
    Path("sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    os.environ["COVERAGE_PROCESS_START"] = f"{clone}/rules"
    subprocess.run([sys.executable, *WORDS.split()], check=False)
    files = {each for each in git("ls-files") if re.match(MUTATED, each)}
    for path in clone.glob("data.*"):
        (data := coverage.CoverageData(str(path))).read()
        for measured in data.measured_files():
            ends = ("/".join(Path(measured).parts[n:]) for n in range(len(Path(measured).parts)))
            if file := next((each for each in ends if each in files), ""):
                for line, tests in data.contexts_by_lineno(measured).items():
                    found[file][line] |= {re.sub(r" \(\w+\)$", "", test) for test in tests}
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps([json.loads(Path("seconds").read_text()), found], default=sorted))


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


def _run_pytest(tests: list[str]) -> None:
    ctypes.CDLL(None).prctl(1, SIGKILL)
    os.setpgrp()
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    status = 99
    with suppress(BaseException), Path("../log").open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        options = ["-n", "0", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = pytest.main([*options, *dict.fromkeys(map(module_of, tests))], plugins=[Chosen(tests)])
    os._exit(status)


def find_failed(tests: list[str]) -> str:
    """Run tests in a fork until one fails or hangs; return that one, or ""."""
    CURRENT.write_text(running := IMPORT)
    (process := FORK.Process(target=_run_pytest, args=(tests,))).start()
    began_s = started_s = time.monotonic()
    while process.exitcode is None and (has_time := time.monotonic() < started_s + LIMIT_S):
        process.join(0.1)
        if running != (running := CURRENT.read_text()):
            began_s = time.monotonic()
        if time.monotonic() > began_s + HANGS_S + 4 * seconds[running]:
            break
    for each in psutil.process_iter():  # a fault may leave processes of any session
        with suppress(psutil.Error, OSError):
            if os.getpgid(each.pid) == process.pid or each.environ().get("TMPDIR", "").startswith(os.environ["TMPDIR"]):
                each.kill()
    process.join()
    return "" if not has_time or process.exitcode in (0, 5) else CURRENT.read_text()


def try_out(mutant: Mutant, ends_s: float) -> str | None:
    """Return the test that notices a fault in this process's clone, or "", or None if no time is left."""
    path = Path(mutant.file)
    original = path.read_bytes()

    def failed(tests: list[str], source: bytes) -> str:
        path.write_bytes(source)
        Path(util.cache_from_source(path)).unlink(missing_ok=True)  # it may have the size and second of the last
        return find_failed(tests)

    faulty, has_time = mutant.apply(original).encode(), time.monotonic() < ends_s
    for part in choose_tests(mutant) if has_time else ():
        while part and (found := failed(part, faulty)):
            if found == IMPORT or (not failed([found], original) and failed([found], faulty)):
                path.write_bytes(original)
                return found
            part.remove(found)  # it fails without the fault, too, or by chance
    path.write_bytes(original)
    return "" if has_time else None


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
    commit, noticed = [*git("stash", "create"), "HEAD"][0], list[bool]()
    path = options.map or ROOT / "build" / "mutants" / f"{git('rev-parse', commit + '^{tree}')[0]}.json"
    with tempfile.TemporaryDirectory(prefix="m-", ignore_cleanup_errors=True) as folder:
        if not path.exists():
            with ProcessPoolExecutor(1, FORK, enter_clone, (folder, commit)) as pool:
                pool.submit(measure, path).result()
        for store, stored in zip((seconds, executed), json.loads(path.read_text()), strict=True):
            store.update(stored)  # type: ignore[attr-defined]
        for name in LIBRARIES.split():
            import_module(name)
        with ProcessPoolExecutor(os.cpu_count(), FORK, enter_clone, (folder, commit)) as pool:
            for mutant, test in zip(sample, pool.map(try_out, sample, itertools.repeat(ends_s)), strict=False):
                if test is not None:
                    noticed.append(bool(test))
                    print(f"{mutant.file}:{mutant.lines[0]} {mutant.kind}: {test or 'SURVIVED'}", flush=True)
                    print("" if test else mutant.show(), end="" if test else "\n", flush=True)
    share = 100 * sum(noticed) / max(1, len(noticed))
    print(f"noticed: {sum(noticed)} of {len(noticed)}, {share:.0f} %; {len(found)} faults, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
