"""The time of a tier of tests: stored, printed with its slowest files, and compared with its limit.

pytest --tier check tests ...   -> .pytest_cache/tiers/check.json, a summary; twice its time is a warning
pytest --tier ... --strict-tier    twice its time fails the run, as every night
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

# Seconds of each tier's tests on two ordinary cores that do nothing else (CONTRIBUTING.md). A slow machine takes up to
# twice as long; a suite that takes longer has grown.
ALLOWED_S = {"check": 90, "test": 450, "nightly": 3600}
SLOWEST = 10
# Mark -> number of tests that this process has deselected.
LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the tier that is run."""
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=sorted(ALLOWED_S), help="the tier that is run: its time is stored and judged")
    group.addoption("--strict-tier", action="store_true", help="fail where the tier takes over twice its time")


def pytest_configure(config: pytest.Config) -> None:
    """Time the run, in the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch(config), "tier-stopwatch")


class Stopwatch:
    """Times a run and each of its files."""

    def __init__(self, config: pytest.Config) -> None:
        self._tier: str | None = config.option.tier
        self._is_strict: bool = config.option.strict_tier
        self._folder = Path(config.rootpath) / ".pytest_cache" / "tiers"
        self._started_s = time.monotonic()
        self._seconds: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's setup, call or teardown to its file."""
        file = report.nodeid.partition("::")[0]
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect an xdist process's deselected tests; each process has the same ones."""
        self._left_out |= getattr(node, "workeroutput", {}).get("left_out", {})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a strict run that took too long."""
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
        for name, count in sorted((self._left_out or config.stash.get(LEFT_OUT, {})).items()):
            terminalreporter.write_line(f"{count} tests marked {name} were left out: this machine has no {name}")
        if self._tier is None:
            return
        took_s, allowed_s = self._took_s, ALLOWED_S[self._tier]
        self._folder.mkdir(parents=True, exist_ok=True)
        slowest_first = sorted(self._seconds.items(), key=lambda item: -item[1])
        files = {name: round(seconds, 2) for name, seconds in slowest_first}
        stored = {"tier": self._tier, "seconds": round(took_s, 1), "allowed": allowed_s, "files": files}
        (self._folder / f"{self._tier}.json").write_text(json.dumps(stored, indent=1), encoding="utf-8")
        slowest = ", ".join(f"{name} {seconds:.0f}" for name, seconds in slowest_first[:SLOWEST])
        terminalreporter.write_line(f"{self._tier}: {took_s:.0f} s of {allowed_s} s; slowest files: {slowest}")
        if self._is_over:
            terminalreporter.write_line(
                f"WARNING: {self._tier} took over twice its {allowed_s} s: it has grown, or this machine is very slow",
                red=True,
            )
