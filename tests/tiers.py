"""The time and the results of a tier of tests: stored, printed with its slowest files, and compared with its limit.

pytest --tier check tests ...   -> .pytest_cache/tiers/check.json, a summary; twice its time is a warning
pytest --tier ... --strict-tier    twice its time fails the run, as every night
python -m tests.tiers              the table of all stored tiers: modules, seconds and results
"""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

# Seconds of each tier's tests on two ordinary cores that do nothing else (CONTRIBUTING.md). A slow machine takes up to
# twice as long; a suite that takes longer has grown.
ALLOWED_S = {"check": 90, "builds": 200, "test": 280, "nightly": 3600}
SLOWEST = 10
STORE = Path(__file__).parents[1] / ".pytest_cache" / "tiers"
OUTCOMES = ("passed", "failed", "skipped")
# Mark -> number of tests that this process has deselected.
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=sorted(ALLOWED_S), help="the tier that is run: its time is stored and judged")
    group.addoption("--strict-tier", action="store_true", help="fail where the tier takes over twice its time")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(config), "tier-stopwatch")


class Stopwatch:
    def __init__(self, config: pytest.Config) -> None:
        self._tier: str | None = config.option.tier
        self._is_strict: bool = config.option.strict_tier
        self._started_s = time.monotonic()
        self._seconds: Counter[str] = Counter()
        self._results: dict[str, Counter[str]] = {}
        self._left_out: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration  # type: ignore[assignment] # a Counter of fractions
        if report.when == "call" or report.outcome != "passed":
            self._results.setdefault(file, Counter())[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a module that cannot be imported."""
        if report.failed:
            self._results.setdefault(report.nodeid, Counter())["failed"] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect an xdist process's deselected tests; each process has the same ones."""
        self._left_out |= getattr(node, "workeroutput", {}).get("left_out", {})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_strict and self._is_over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def _took_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def _is_over(self) -> bool:
        return self._tier is not None and self._took_s > 2 * ALLOWED_S[self._tier]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Print the deselected tests, and the tier's time with its slowest files; store all of them."""
        left_out = self._left_out or config.stash.get(LEFT_OUT, {})
        for name, count in sorted(left_out.items()):
            terminalreporter.write_line(f"{count} tests marked {name} were left out: this machine has no {name}")
        if self._tier is None:
            return
        took_s, allowed_s = self._took_s, ALLOWED_S[self._tier]
        STORE.mkdir(parents=True, exist_ok=True)
        names = sorted(self._seconds.keys() | self._results.keys(), key=lambda name: -self._seconds[name])
        files = {
            name: {"seconds": round(self._seconds[name], 1), **self._results.get(name, Counter())} for name in names
        }
        stored = {"seconds": round(took_s, 1), "allowed": allowed_s, "left out": left_out, "files": files}
        (STORE / f"{self._tier}.json").write_text(json.dumps(stored, indent=1), encoding="utf-8")
        slowest = ", ".join(f"{name} {self._seconds[name]:.0f}" for name in names[:SLOWEST])
        terminalreporter.write_line(f"{self._tier}: {took_s:.0f} s of {allowed_s} s; slowest files: {slowest}")
        if self._is_over:
            terminalreporter.write_line(
                f"WARNING: {self._tier} took over twice its {allowed_s} s: it has grown, or this machine is very slow",
                red=True,
            )


def table() -> str:
    """Return the stored tiers as a Markdown table, a row for each module."""
    rows = ["| module | seconds | passed | failed | skipped |", "|---|---:|---:|---:|---:|"]
    for tier in ALLOWED_S:
        path = STORE / f"{tier}.json"
        if not path.exists():
            rows.append(f"| **{tier}** | did not run | | | |")
            continue
        stored = json.loads(path.read_text(encoding="utf-8"))
        files: dict[str, dict[str, float]] = stored["files"]
        total = {name: sum(file.get(name, 0) for file in files.values()) for name in OUTCOMES}
        for name, found in {f"**{tier}**, of {stored['allowed']} s": {**stored, **total}, **files}.items():
            results = " | ".join(str(found.get(each, 0)) for each in OUTCOMES)
            rows.append(f"| {name} | {found['seconds']:.0f} | {results} |")
        rows += [f"| {count} marked {mark}, not run | | | | |" for mark, count in stored["left out"].items()]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
