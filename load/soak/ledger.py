"""The ledger: what was sent to each model, what came back, and what did not. Pure; times are of time.perf_counter.

sent -> answered (status and verdict) | lost (no answer)     kill -> noticed -> recovered (the next 200)

A request that is sent and neither answered nor lost is in flight; at the end that is an unanswered one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict

# The phases of a run.
CAPACITY, STEADY, KILLS = "capacity", "steady", "kills"
# Overload and expiry: an answer that a client of a loaded server must be ready for.
REFUSED = (503, 504)
# TorchServe's own, to those whose worker died: 507 after a kill -9, 500 otherwise.
DIED = (500, 507)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what a kill excuses."""

    # Seconds after a kill in which a request may still be handed to the worker that is gone: TorchServe notices when
    # the socket closes, which a machine that stalls delays.
    grace_s: float = 1.0
    # Surprises that are described one by one; the rest is only counted.
    described: int = 20


TUNING = Tuning()


@dataclass(slots=True)
class Account:
    """The requests of one model in one phase.

    Attributes:
        sent: number of requests.
        statuses: answers by status.
        verdicts: answers with status 200 by verdict.
        lost: requests without an answer, by reason.
        unexpected: answers by a status that nothing excuses.
        held_back: requests that were due and not sent, because too many of the model were in flight.
        slowest_s: the longest that an answer took.
    """

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[int] = field(default_factory=Counter)
    held_back: int = 0
    slowest_s: float = 0.0

    @property
    def in_flight(self) -> int:
        """Requests that are neither answered nor lost yet."""
        return self.sent - self.statuses.total() - self.lost.total()

    @property
    def unanswered(self) -> int:
        """Requests without an answer, those in flight included."""
        return self.sent - self.statuses.total()

    @property
    def crossed(self) -> int:
        """Answers that belong to another request."""
        return self.verdicts[Verdict.SWAPPED]

    @property
    def wrong(self) -> int:
        """Answers that are nobody's."""
        return self.verdicts[Verdict.WRONG]

    def __add__(self, other: "Account") -> "Account":
        return Account(
            self.sent + other.sent,
            self.statuses + other.statuses,
            self.verdicts + other.verdicts,
            self.lost + other.lost,
            self.unexpected + other.unexpected,
            self.held_back + other.held_back,
            max(self.slowest_s, other.slowest_s),
        )


@dataclass(slots=True)
class Kill:
    """One kill -9 of a worker; times in seconds.

    Attributes:
        model: the model whose worker it was.
        pid: the process.
        killed_s: when it was killed.
        noticed_s: when the management API showed another process or state.
        answered_s: when the next 200 came; None until then.
        ready_s: when the management API showed a worker that is READY; None until then.
    """

    model: str
    pid: int
    killed_s: float
    noticed_s: float | None = None
    answered_s: float | None = None
    ready_s: float | None = None

    @property
    def recovery_s(self) -> float | None:
        """From the kill to the next 200."""
        return None if self.answered_s is None else self.answered_s - self.killed_s


class Ledger:
    """Every request of a run, by phase and model."""

    def __init__(self) -> None:
        self.phase = ""
        self.kills: list[Kill] = []
        self.surprises: list[str] = []
        # Requests that are neither answered nor lost yet, by model.
        self.in_flight: Counter[str] = Counter()
        self._accounts: defaultdict[tuple[str, str], Account] = defaultdict(Account)

    def sent(self, model: str) -> str:
        """Enter a request; returns the phase, which its answer belongs to."""
        self._accounts[self.phase, model].sent += 1
        self.in_flight[model] += 1
        return self.phase

    def held_back(self, model: str) -> None:
        """Enter a request that was due and not sent."""
        self._accounts[self.phase, model].held_back += 1

    def ended(self, model: str, phase: str, exchange: Exchange) -> None:
        """Enter what came of a request, in the phase that `sent` gave."""
        account = self._accounts[phase, model]
        if exchange.status == NO_ANSWER:
            self.lost(model, phase, str(exchange.error), exchange)
            return
        self.in_flight[model] -= 1
        account.statuses[exchange.status] += 1
        account.slowest_s = max(account.slowest_s, exchange.latency_s)
        if exchange.verdict is not None:
            account.verdicts[exchange.verdict] += 1
            if exchange.verdict is not Verdict.RIGHT:
                words = f"the answer to canary {exchange.source} is {exchange.verdict}"
                self._surprise(model, phase, f"{words}, {self._times(model, exchange)}")
        if exchange.status == OK:
            self._recovered(model, exchange.answered_s)
        elif not self._is_expected(model, exchange):
            account.unexpected[exchange.status] += 1
            self._surprise(model, phase, f"status {exchange.status}, {self._times(model, exchange)}")

    def lost(self, model: str, phase: str, reason: str, exchange: Exchange | None = None) -> None:
        """Enter a request that has no answer and will have none.

        Args:
            model, phase: as `sent` had them.
            reason: name of what went wrong.
            exchange: when it was sent and given up; None where nobody knows.
        """
        self.in_flight[model] -= 1
        self._accounts[phase, model].lost[reason] += 1
        times = "" if exchange is None else f", {self._times(model, exchange)}"
        self._surprise(model, phase, f"no answer: {reason}{times}")

    def killed(self, model: str, pid: int, killed_s: float) -> Kill:
        """Enter a kill, before it happens."""
        kill = Kill(model, pid, killed_s)
        self.kills.append(kill)
        return kill

    def accounts(self) -> Iterator[tuple[str, str, Account]]:
        """Yield phase, model and account, in the order of their first requests."""
        yield from ((phase, model, account) for (phase, model), account in self._accounts.items())

    def total(self, model: str | None = None) -> Account:
        """Sum up a model's accounts, or all."""
        return sum((account for _, name, account in self.accounts() if model in (None, name)), Account())

    def _is_expected(self, model: str, exchange: Exchange) -> bool:
        if exchange.status in REFUSED:
            return True
        return exchange.status in DIED and any(
            kill.model == model
            and exchange.sent_s <= kill.killed_s + TUNING.grace_s
            and exchange.answered_s >= kill.killed_s
            for kill in self.kills
        )

    def _recovered(self, model: str, answered_s: float) -> None:
        for kill in reversed(self.kills):
            if kill.model == model and kill.answered_s is None:
                if kill.noticed_s is not None and answered_s > kill.noticed_s:
                    kill.answered_s = answered_s
                return

    def _times(self, model: str, exchange: Exchange) -> str:
        """Say how long a request took, and how it lay to the last kill before it ended."""
        words = f"{exchange.latency_s:.2f} s after it was sent"
        kills = [k.killed_s for k in self.kills if k.model == model and k.killed_s <= exchange.answered_s]
        return f"{words}, {exchange.answered_s - kills[-1]:.2f} s after a kill" if kills else words

    def _surprise(self, model: str, phase: str, words: str) -> None:
        if len(self.surprises) < TUNING.described:
            self.surprises.append(f"{phase}: {model}: {words}")
