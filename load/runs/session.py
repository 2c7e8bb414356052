"""Measures steps one after the other, on one model or on several in turn.

    Served.check -> for each repeat, for each step, for each model: counters, Attack, counters -> StepResult -> Run

Models are interleaved: what drifts on the machine meanwhile, drifts for all of them.
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from load.errors import TooMuch
from load.generate import precise_loop
from load.generate.attack import Attack
from load.generate.inputs import Inputs
from load.generate.target import Check
from load.generate.windows import Until
from load.measure.recording import MAX_MEMORY_BYTES, Recording
from load.measure.server_metrics import Counters, ServerStatistics
from load.measure.summary import Summary
from load.runs.run_file import Run, StepResult
from load.runs.scenarios import Step
from load.runs.served import Served

# Seconds after a run until its counters are read: handlers send them once a second, and a scrape takes its time.
COUNTERS_DELAY_S = 1.2


class Display(Protocol):
    """Shows a person what happens meanwhile."""

    async def watch(self, title: str, recording: Recording) -> None:
        """Show a run while it lasts; the call is cancelled at its end."""

    def finished(self, title: str, result: StepResult) -> None:
        """Show the result of a run."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One model and the run that its results go to.

    Attributes:
        served: the model.
        run: the run that grows by a step with each measurement.
        check: judges answers; None believes them.
    """

    served: Served
    run: Run
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Measures every step in the same way.

    Attributes:
        inputs: what is sent.
        until: says how long a step is measured.
        warm_up_s: least number of seconds under load before each step's window opens.
        latency_threshold_ms: most latency of an answer that goodput counts; None counts every good answer.
        max_lag_ms: most lag of the generator at its p99 in a step that is valid.
        display: shows a person what happens.
        max_memory_bytes: most memory for what all measurements together record.
    """

    inputs: Inputs
    until: Until
    warm_up_s: float
    latency_threshold_ms: float | None
    max_lag_ms: float
    display: Display
    max_memory_bytes: int = MAX_MEMORY_BYTES
    _used_bytes: list[int] = field(default_factory=list)

    def subject(self, served: Served, label: str, settings: dict[str, Any], check: Check | None = None) -> Subject:
        """Begin an empty run of a model.

        Args:
            served: the model.
            label: name of the run in reports.
            settings: options of the command line, as the run stores them.
            check: judges answers; None believes them.

        Raises:
            NotServed: the model is not ready.
        """
        registration = served.check(self.inputs.items[0])
        names = [item.name for item in self.inputs.items]
        run = Run(label, _now(), served.model, served.prediction_url, registration, settings, names)
        return Subject(served, run, check)

    def measure_all(self, subjects: Sequence[Subject], steps: Sequence[Step], repeats: int = 1) -> bool:
        """Measure every step of every subject, and add the results to their runs.

        Args:
            subjects: the models, at least one.
            steps: the loads, in order.
            repeats: how often everything is measured.

        Returns:
            Whether it came to its end; False when Ctrl-C ended it, and what was measured until then is kept.
        """
        for repeat in range(1, repeats + 1):
            for step in steps:
                # The first one finds a quieter machine, so another one is the first in each repeat.
                first = repeat % len(subjects)
                for subject in [*subjects[first:], *subjects[:first]]:
                    title = f"{subject.run.label}, {step}" + (f", repeat {repeat}/{repeats}" if repeats > 1 else "")
                    if self.measure(subject, step, title, repeat).is_interrupted:
                        return False
        return True

    def measure(self, subject: Subject, step: Step, title: str, repeat: int = 1) -> Summary:
        """Measure one step, and add its result to the subject's run.

        Args:
            subject: the model and its run.
            step: the load.
            title: what the display calls the measurement.
            repeat: number of the repeat, from 1 on.

        Raises:
            TooMuch: what the measurements before have recorded takes all the memory.
        """
        left_bytes = self.max_memory_bytes - sum(self._used_bytes)
        if left_bytes <= 0:
            raise TooMuch(f"{title}: not measured: what was recorded before takes as much as --max-memory allows")
        attack = Attack(
            target=subject.served.target(subject.check),
            inputs=self.inputs,
            load=step.load,
            until=self.until,
            warm_up_s=self.warm_up_s,
            latency_threshold_ms=self.latency_threshold_ms,
            max_lag_ms=self.max_lag_ms,
        )
        before, started_at = subject.served.counters(), _now()
        recording = precise_loop.run(self._generate(attack, title, left_bytes))
        self._used_bytes.append(recording.exchanges.memory_bytes)
        summary = attack.summarise(recording)
        result = StepResult.of(
            step,
            summary,
            recording,
            _added(subject.served, before, recording),
            repeat=repeat,
            started_at=started_at,
            latency_threshold_ms=self.latency_threshold_ms,
        )
        subject.run.steps.append(result)
        self.display.finished(title, result)
        return summary

    async def _generate(self, attack: Attack, title: str, limit_bytes: int) -> Recording:
        recording = Recording(limit_bytes=limit_bytes)
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            recording.stop()
            # A second Ctrl-C ends the process as it always does.
            loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            return await attack.generate(recording, lambda running: self.display.watch(title, running))
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def _added(served: Served, before: Counters | None, recording: Recording) -> ServerStatistics | None:
    """Return what the server counted meanwhile; None where it does not say."""
    if before is None:
        return None
    if not recording.is_stopped:
        time.sleep(COUNTERS_DELAY_S)
    after = served.counters()
    return None if after is None else ServerStatistics.of(after.since(before))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
