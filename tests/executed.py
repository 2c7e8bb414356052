"""Which tests execute a line, for `make mutants`: each test module runs once, in a clone, under coverage.

clone -> fork with all libraries -> pytest of a module, its subprocesses and archives -> a JSON file -> seconds, lines
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import coverage
import psutil
import pytest

from tests.faults import ROOT

MUTATED = r"(handlers|client|deploy|load(?!/bench)|torchserve_batching(?!/project))/.*(?<!_pb2)\.py$"
LIMIT_S = 600.0  # of a module under coverage
RULES = """[run]
parallel = true
data_file = {folder}/data
context = ${{PYTEST_CURRENT_TEST-}}
include = {included}
omit = */site-packages/*
"""
seconds: dict[str, float] = {}  # of each test that passes
lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))  # file, line -> tests; "": at import


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, of Linux


def git(*words: str) -> list[str]:
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True).stdout.splitlines()


def make_clone(folder: str, commit: str) -> None:
    """Copy the files that git knows for a process of the pool, which works there from now on."""
    die_with_parent()
    clone = Path(tempfile.mkdtemp(dir=folder), "clone")
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", "--detach", commit], check=True)
    (clone / ".venv").symlink_to(ROOT / ".venv")
    os.chdir(clone)
    os.environ |= {"TMPDIR": str(clone.parent), "PYTHONPATH": str(clone / "client"), "OMP_NUM_THREADS": "1"}
    sys.path[:0], tempfile.tempdir = [str(clone), str(clone / "client")], str(clone.parent)


def fork_pytest(limit_s: float, words: list[str], make_plugin: Callable[[], object]) -> int | None:
    """Run pytest in a fork; return its exit code, and None if it does not end in time."""
    ends_s, code, temporary = time.monotonic() + limit_s, None, os.environ["TMPDIR"]
    if (pid := os.fork()) == 0:
        die_with_parent()
        plugin, status = make_plugin(), 99
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        with suppress(BaseException), Path("mutant.log").open("w") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            options = ["-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
            status = pytest.main([*options, *words], plugins=[plugin])
        os._exit(status)
    while code is None and time.monotonic() < ends_s:
        time.sleep(0.05)
        ended, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
    for process in psutil.process_iter():  # a mutant may leave processes of any session
        with suppress(psutil.Error):
            if process.pid == pid or process.environ().get("TMPDIR", "").startswith(temporary):
                process.kill()
    if code is None:
        os.waitpid(pid, 0)
    return code


class Recorder:
    """A plugin of pytest: names the running test to coverage, and measures its seconds."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured, self._seconds, self._failed = measured, dict[str, float](), set[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._measured.switch_context(item.nodeid)
        started_s = sum(os.times()[:4])  # of processors, also those of ended subprocesses
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = sum(os.times()[:4]) - started_s
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= {report.nodeid} if report.failed else set()

    def pytest_sessionfinish(self) -> None:
        self._measured.save()
        kept = {test: round(took_s, 3) for test, took_s in self._seconds.items() if test not in self._failed}
        Path("seconds.json").write_text(json.dumps(kept))


def measure(module: str, result: Path) -> None:
    """Store the seconds of a module's tests, and the lines that each executes, in processes and archives, too."""
    folder, files = Path(os.environ["TMPDIR"]), {each for each in git("ls-files") if re.match(MUTATED, each)}
    included = ", ".join(f"*/{each}/**" for each in re.findall("[a-z_]{4,}", MUTATED)[:5])
    (folder / "rules").write_text(RULES.format(folder=folder, included=included))
    (folder / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")

    def start() -> Recorder:
        os.environ["COVERAGE_PROCESS_START"] = f"{folder}/rules"
        os.environ["PYTHONPATH"] += f":{folder}"
        measured = coverage.Coverage(config_file=f"{folder}/rules")
        measured.start()
        return Recorder(measured)

    Path("seconds.json").write_text("{}")
    fork_pytest(LIMIT_S, [module], start)
    tests, found = json.loads(Path("seconds.json").read_text()), defaultdict[str, Any](lambda: defaultdict(set))
    for path in folder.glob("data.*"):
        data = coverage.CoverageData(str(path))
        data.read()
        for measured in data.measured_files():
            parts = Path(measured).parts
            file = next((each for n in range(len(parts)) if (each := "/".join(parts[n:])) in files), "")
            for line, names in data.contexts_by_lineno(measured).items() if file else ():
                found[file][line] |= {re.sub(r" \(\w+\)$", "", name) for name in names} & {*tests, ""}
        path.unlink()
    if not tests:
        print(f"{module}: no test passes under coverage", flush=True)
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps({"seconds": tests, "lines": found}, default=sorted))


def load(result: Path) -> None:
    stored = json.loads(result.read_text())
    seconds.update(stored["seconds"])
    for file, tests_of in stored["lines"].items():
        for line, tests in tests_of.items():
            lines[file][int(line)] |= {*tests}
