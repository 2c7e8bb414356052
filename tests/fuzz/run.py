"""Send fuzzed requests among valid ones for as long as asked, and keep what does not hold.

seed, numbers -> batches of fuzzed requests and neighbours -> Target -> checks -> Outcome: statuses, times, findings
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tests.fuzz import bodies
from tests.fuzz.checks import CANARIES, Received, differ, problems
from tests.fuzz.kinds import Kind
from tests.fuzz.outcome import Finding, Outcome, Usage
from tests.fuzz.sent import Sent
from tests.fuzz.values import Draw

# Fuzzed requests of a batch, and valid ones among them.
FUZZED, VALID = 10, 2
FEWEST_NEIGHBOURS = 3
# Every so many batches one fuzzed request is sent alone too: it is a neighbour like any other.
ALONE_EVERY = 3
# What a worker may grow by once it has met most shapes: an engine keeps what it prepared for each. A run so short that
# it has not met them says nothing of memory.
MOST_GROWTH_MIB = 64.0
MOST_MORE_THREADS = MOST_MORE_FILES = 2
SETTLED_SHARE, SETTLED_BODIES = 1 / 3, 500


class Log(logging.Handler):
    """Keeps what is logged at warning and above, since the last look."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._ours: list[str] = []
        self.has_payload = False
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; TorchServe's own lines are looked at, and only ours are kept."""
        line = self.format(record)
        self.has_payload |= CANARIES.search(line) is not None
        if record.name.startswith("handlers"):
            self._ours.append(line)

    def taken(self) -> str:
        """Our lines, once."""
        lines, self._ours = self._ours, []
        return "\n".join(lines)


class Gone(Exception):
    """What is sent to is not there any more, and does not come back."""


class Target(Protocol):
    """What is sent to."""

    is_adaptive: bool
    is_served: bool

    def answers(self, batch: Sequence[Sent], *, decodes: bool) -> list[Received]:
        """Send requests together.

        Args:
            batch: the requests.
            decodes: whether TorchServe parses JSON and decodes text before the handler sees them, its
                `decode_input_request`; an adaptive worker reads the bytes itself.
        """

    def usage(self) -> Usage:
        """What the worker's process holds."""


class Fuzzer:
    """Fuzzes one target."""

    def __init__(self, kind: Kind, target: Target, seed: int, mode: str, note: Callable[[Sequence[int]], None]) -> None:
        """Get to know the neighbours' answers.

        Args:
            kind: the task.
            target: what is sent to.
            seed: of every request.
            mode: the target's, for the report.
            note: is told the numbers of each batch before it is sent.
        """
        self._kind, self._target, self._seed, self._note = kind, target, seed, note
        self._log = Log()
        self.outcome = Outcome(kind.name, mode)
        # What TorchServe has parsed, no handler knows the size of: the bytes are the stricter way.
        asked = [(each, target.answers([each], decodes=False)[0]) for each in bodies.neighbours(kind, seed)]
        # What a client might send may be beyond a limit of so small an archive.
        good = [(each, answer) for each, answer in asked if answer.status == 200]
        if len(good) < FEWEST_NEIGHBOURS:
            raise RuntimeError(f"{kind.name}: valid requests are answered {[answer.status for _, answer in asked]}")
        self._neighbours, self._alone = [each for each, _ in good], [answer for _, answer in good]

    def run(self, batches: Iterator[Sequence[int]], is_over: Callable[[float], float]) -> Outcome:
        """Send batches until there are none or the run is over.

        Args:
            batches: the numbers of each.
            is_over: says which share of the run is done, 1 and more at its end.
        """
        logging.getLogger().addHandler(self._log)
        started, settled = time.monotonic(), None
        try:
            for numbers in batches:
                self._note(numbers)
                try:
                    self.batch(numbers)
                except Gone:
                    self._find(numbers[0], f"after the batch from {numbers[0]} on nobody answers any more")
                    break
                share = is_over(self.outcome.bodies)
                if settled is None and share >= SETTLED_SHARE and self.outcome.bodies >= SETTLED_BODIES:
                    settled = self._target.usage()
                if share >= 1:
                    break
        finally:
            logging.getLogger().removeHandler(self._log)
        self.outcome.seconds = time.monotonic() - started
        if settled is not None:
            self._compare(settled, self._target.usage())
        return self.outcome

    def batch(self, numbers: Sequence[int]) -> None:
        """Send some requests among neighbours, and check every answer."""
        chance = Draw(f"{self._seed}/{self._kind.name}/batch {numbers[0]}")
        decodes = is_decoded(numbers[0])
        sent = {number: bodies.request(self._kind, self._seed, number) for number in numbers}
        beside = chance.sample(range(len(self._neighbours)), VALID)
        order: list[tuple[str, int]] = [("sent", number) for number in numbers] + [("beside", each) for each in beside]
        chance.shuffle(order)
        batch = [sent[index] if what == "sent" else self._neighbours[index] for what, index in order]
        try:
            answers = self._target.answers(batch, decodes=decodes)
        except Gone:
            raise
        except Exception as error:
            self._raised(sent, error, decodes=decodes)
            return
        log = self._log.taken()
        if self._log.has_payload:
            self._log.has_payload = False
            self._find(numbers[0], f"of the batch from {numbers[0]} on, the payload is logged", (), log)
        for (what, index), answer in zip(order, answers, strict=True):
            if what == "beside":
                if differ(self._kind, self._alone[index], answer):
                    self._find(numbers[0], f"a neighbour's answer changed ({answer.status})", (), log)
            else:
                self._check(index, sent[index], answer, log)
        slowest = max(answers, key=lambda answer: answer.seconds)
        self._time(sent, slowest.seconds, decodes=decodes)
        if (numbers[0] // FUZZED) % ALONE_EVERY == 0:
            number = chance.choice(numbers)
            index = order.index(("sent", number))
            self._check_alone(number, sent[number], answers[index], decodes=decodes)

    def beside_neighbours(self, sent: Sent, *, decodes: bool) -> tuple[Received, list[str]]:
        """Send any request between neighbours; return its answer, and whose of the neighbours changed."""
        batch = [self._neighbours[0], sent, self._neighbours[-1]]
        first, answer, last = self._target.answers(batch, decodes=decodes)
        changed = {
            "the first": differ(self._kind, self._alone[0], first),
            "the last": differ(self._kind, self._alone[-1], last),
        }
        return answer, [which for which, is_changed in changed.items() if is_changed]

    def _check(self, number: int, sent: Sent, answer: Received, log: str) -> None:
        self.outcome.bodies += 1
        self.outcome.statuses[answer.status] += 1
        for problem in problems(sent, answer, is_adaptive=self._target.is_adaptive, is_served=self._target.is_served):
            self._find(number, problem, sent.how, log)

    def _check_alone(self, number: int, sent: Sent, among: Received, *, decodes: bool) -> None:
        if sent.may_time_out:
            return
        (alone,) = self._target.answers([sent], decodes=decodes)
        if differ(self._kind, alone, among):
            self._find(
                number, f"its answer is {alone.status} alone and {among.status} or another among others", sent.how, ""
            )

    def _raised(self, sent: dict[int, Sent], error: Exception, *, decodes: bool) -> None:
        """Find out whose request made `handle` raise, which fails a batch."""
        found = False
        self.outcome.bodies += len(sent)
        for number, each in sent.items():
            try:
                self._target.answers([each], decodes=decodes)
            except Gone:
                raise
            except Exception as own:
                found = True
                self._find(number, f"the whole batch fails: {type(own).__name__}", each.how, _traceback(own))
        if not found:
            self._find(min(sent), f"the batch fails together: {type(error).__name__}", (), _traceback(error))

    def _time(self, sent: dict[int, Sent], seconds: float, *, decodes: bool) -> None:
        """Keep the slowest time; one beyond the budget is measured again, request by request."""
        if seconds > self._kind.budget_s:
            again = {number: self._seconds([each], decodes=decodes) for number, each in sent.items()}
            slow = {number: taken for number, taken in again.items() if taken > self._kind.budget_s}
            for number in slow:
                self._find(number, f"more than {self._kind.budget_s} s for an answer", sent[number].how, "")
            if not slow:
                seconds = min(seconds, self._seconds(list(sent.values()), decodes=decodes))
                if seconds > self._kind.budget_s:
                    self._find(
                        min(sent),
                        f"more than {self._kind.budget_s} s for a batch, for none of its requests alone",
                        (),
                        "",
                    )
        if seconds > self.outcome.slowest_s:
            self.outcome.slowest_s, self.outcome.slowest_number = seconds, min(sent)

    def _seconds(self, batch: Sequence[Sent], *, decodes: bool) -> float:
        return max(answer.seconds for answer in self._target.answers(batch, decodes=decodes))

    def _compare(self, settled: Usage, ended: Usage) -> None:
        outcome = self.outcome
        outcome.growth_mib = ended.rss_mib - settled.rss_mib
        outcome.more_threads = ended.threads - settled.threads
        outcome.more_files = ended.files - settled.files
        for what, grown, most in (
            ("MiB of memory", outcome.growth_mib, MOST_GROWTH_MIB),
            ("threads", outcome.more_threads, MOST_MORE_THREADS),
            ("files", outcome.more_files, MOST_MORE_FILES),
        ):
            if grown > most:
                self._find(0, f"{grown:.0f} more {what} than after a third of the run; {most:.0f} are allowed", (), "")

    def _find(self, number: int, problem: str, how: Sequence[str] = (), log: str = "") -> None:
        self.outcome.findings.append(Finding(number, problem, how, log))


def is_decoded(number: int) -> bool:
    """Whether TorchServe decodes the bodies of the batch that a request belongs to; every other one's."""
    return (number // FUZZED) % 2 == 0


def batches_from(first: int) -> Iterator[Sequence[int]]:
    """The numbers of the batches from one request on, without end."""
    for start in itertools.count(first - first % FUZZED, FUZZED):
        yield range(start, start + FUZZED)


def _traceback(error: BaseException) -> str:
    frames = []
    trace: Any = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_name} ({os.path.relpath(code.co_filename)}:{trace.tb_lineno})")
        trace = trace.tb_next
    return " > ".join(frames)
