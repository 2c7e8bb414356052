"""The report of a soak: its findings, its table, and its JSON. Pure.

Outcome -> findings (what must not be) -> exit code
        -> table, JSON
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from load.soak.ledger import STEADY, Account, Kill, Ledger
from load.soak.resources import JAVA, Sample, slope_mb_per_min


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that the server's processes may grow.

    Memory grows while shapes are met for the first time and while Java's heap is filled; so a slope counts only where
    the growth that it stands for is more than such things take.
    """

    # MB a minute of one process, in the steady phase without its first third: 600 MB in an hour.
    worker_mb_per_min: float = 10.0
    java_mb_per_min: float = 10.0
    # MB of that line's rise below which a slope is noise: kernels for a few hundred new shapes; a heap of 1 GiB that
    # is not full yet.
    worker_noise_mb: float = 60.0
    java_noise_mb: float = 250.0
    # Descriptors and threads of one process, end over start: a pool that has grown. Misbehaving clients and kills are
    # several tens in a minute, so one leaked by each is seen.
    descriptors: int = 24
    threads: int = 24


BOUNDS = Bounds()
# Share of the steady phase that is left out of the slope: caches fill.
SETTLING = 1 / 3
# Share of the steady phase's requests that may be held back while the machine stalls.
HELD_BACK = 0.1
STATUSES = (200, 500, 503, 504, 507)


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run.

    Attributes:
        mode, minutes, seed: as the command line has them.
        least_kills: number of kills that were wanted.
        capacity_per_s: answers with status 200 per second, in a closed loop of `clients` with the same mix.
        clients: number of clients of that loop.
        rate_per_s: requests per second of the phases.
        shares: requests of each model, of the sum of all.
        canaries: number of inputs of each model.
    """

    mode: str
    minutes: float
    seed: int
    least_kills: int
    capacity_per_s: float
    clients: int
    rate_per_s: float
    shares: dict[str, int]
    canaries: dict[str, int]


@dataclass(frozen=True, slots=True)
class Held:
    """What one process held.

    Attributes:
        name: JAVA, or the model whose worker it is.
        start, end: the first look, under load, and the last one, when everything was answered.
        slope_mb_per_min, rise_mb: of its memory, in the part of the steady phase that counts.
    """

    name: str
    start: Sample
    end: Sample
    slope_mb_per_min: float
    rise_mb: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        setting: what was run.
        ledger: every request and kill.
        misbehaved: number of misbehaving clients by kind.
        held: what each process held.
        problems: what kept the run from its end, if anything did.
    """

    setting: Setting
    ledger: Ledger
    misbehaved: Counter[str]
    held: Sequence[Held]
    problems: Sequence[str] = ()


def held(samples: Sequence[Sample], opens_s: float, closes_s: float) -> list[Held]:
    """Sum up the samples by process name.

    Args:
        samples: in the order of time.
        opens_s, closes_s: the steady phase, in which no worker was killed.
    """
    from_s = opens_s + SETTLING * (closes_s - opens_s)
    found = []
    for name in dict.fromkeys(sample.name for sample in samples):
        own = [sample for sample in samples if sample.name == name]
        counted = [sample for sample in own if from_s <= sample.at_s <= closes_s]
        slope = slope_mb_per_min(counted)
        span_min = (counted[-1].at_s - counted[0].at_s) / 60 if counted else 0.0
        start = next((sample for sample in own if sample.at_s >= opens_s), own[0])
        found.append(Held(name, start, own[-1], slope, slope * span_min))
    return found


def findings(outcome: Outcome) -> list[str]:
    """List what must not be, a line each; empty where all is well."""
    total, setting = outcome.ledger.total(), outcome.setting
    lines = list(outcome.problems)
    if total.unanswered:
        reasons = ", ".join(f"{reason} {count}" for reason, count in total.lost.items())
        waiting = f"{total.in_flight} were still in flight at the end" if total.in_flight else ""
        lines.append(f"{total.unanswered} unanswered: {', '.join(filter(None, (reasons, waiting)))}")
    if total.crossed:
        lines.append(f"{total.crossed} crossed: answers that belong to another request")
    if total.wrong:
        lines.append(f"{total.wrong} wrong: answers that are no canary's")
    for status, count in sorted(total.unexpected.items()):
        lines.append(f"{count} answers of status {status} that nothing excuses")
    if not total.statuses[200]:
        lines.append("nothing was answered with 200")
    steady = sum((account for phase, _, account in outcome.ledger.accounts() if phase == STEADY), Account())
    if steady.held_back > HELD_BACK * (steady.sent + steady.held_back):
        due = steady.sent + steady.held_back
        lines.append(f"the steady phase held back {steady.held_back} of {due} requests: it is no steady load")
    back = [kill for kill in outcome.ledger.kills if kill.recovery_s is not None]
    if len(back) < setting.least_kills:
        lines.append(f"{len(back)} kills that the model came back from, {setting.least_kills} are wanted")
    for kill in outcome.ledger.kills:
        if kill.recovery_s is None:
            lines.append(f"{kill.model}: no 200 after its worker {kill.pid} was killed")
    for each in outcome.held:
        lines += _growth(each)
    return [*lines, *outcome.ledger.surprises]


def _growth(each: Held) -> list[str]:
    is_java = each.name == JAVA
    most = BOUNDS.java_mb_per_min if is_java else BOUNDS.worker_mb_per_min
    noise = BOUNDS.java_noise_mb if is_java else BOUNDS.worker_noise_mb
    lines = []
    if each.slope_mb_per_min > most and each.rise_mb > noise:
        lines.append(
            f"{each.name}: memory grows by {each.slope_mb_per_min:.1f} MB/min, {each.rise_mb:.0f} MB in all; at most "
            f"{most:g} MB/min, or {noise:g} MB, are allowed"
        )
    for what, grown, bound in (
        ("descriptors", each.end.descriptors - each.start.descriptors, BOUNDS.descriptors),
        ("threads", each.end.threads - each.start.threads, BOUNDS.threads),
    ):
        if grown > bound:
            lines.append(f"{each.name}: {grown} {what} more at the end than at the start, at most {bound} are allowed")
    return lines


def table(outcome: Outcome) -> str:
    """Write everything as text of aligned columns."""
    setting = outcome.setting
    of = sum(setting.shares.values())
    mix = ", ".join(f"{name} {share}" for name, share in setting.shares.items())
    parts = [
        f"soak: {setting.minutes:g} minutes, mode {setting.mode}, seed {setting.seed}",
        f"capacity {setting.capacity_per_s:.0f}/s (closed loop of {setting.clients} clients, the same mix); "
        f"load {setting.rate_per_s:.0f}/s, {_percent(setting.rate_per_s, setting.capacity_per_s)} of it",
        f"mix, of {of} requests: {mix}",
        "",
        _columns(_traffic_rows(outcome.ledger)),
        "",
        _recoveries(outcome.ledger.kills),
        "misbehaving clients: "
        + (", ".join(f"{kind} {n}" for kind, n in sorted(outcome.misbehaved.items())) or "none"),
        "",
        _columns(_resource_rows(outcome.held)),
        "",
    ]
    lines = findings(outcome)
    parts += [f"FOUND: {line}" for line in lines] or ["nothing unanswered, crossed, wrong or grown"]
    return "\n".join(parts)


def _percent(value: float, of: float) -> str:
    return f"{100 * value / of:.0f} %" if of else "-"


def _traffic_rows(ledger: Ledger) -> list[list[str]]:
    head = ["phase", "model", "requests", *map(str, STATUSES), "others", "unanswered", "crossed", "wrong", "held back"]
    rows = [[*head, "slowest s"]]
    for phase, model, account in [*ledger.accounts(), ("all", "", ledger.total())]:
        rows.append([phase, model, *_counts(account)])
    return rows


def _counts(account: Account) -> list[str]:
    others = account.statuses.total() - sum(account.statuses[status] for status in STATUSES)
    counts = [account.sent, *(account.statuses[status] for status in STATUSES), others]
    counts += [account.unanswered, account.crossed, account.wrong, account.held_back]
    return [*(str(count or "0") for count in counts), f"{account.slowest_s:.2f}"]


def _recoveries(kills: Sequence[Kill]) -> str:
    lines = [["recovery", "kills", "p50 s", "max s", "READY p50 s"]]
    for model in [*dict.fromkeys(kill.model for kill in kills), None]:
        own = [kill for kill in kills if model in (None, kill.model)]
        times = [kill.recovery_s for kill in own if kill.recovery_s is not None]
        ready = [kill.ready_s - kill.killed_s for kill in own if kill.ready_s is not None]
        seconds = [f"{median(times):.1f}", f"{max(times):.1f}"] if times else ["", ""]
        lines.append([model or "all", str(len(own)), *seconds, f"{median(ready):.1f}" if ready else ""])
    return _columns(lines) + "\n"


def _resource_rows(processes: Sequence[Held]) -> list[list[str]]:
    head = ["process", "RSS MB start", "end", "slope MB/min", "descriptors start", "end", "threads start", "end"]
    rows = [head]
    for each in processes:
        start, end = each.start, each.end
        slope = f"{each.slope_mb_per_min:+.1f}"
        memory = [f"{start.rss_mb:.0f}", f"{end.rss_mb:.0f}", slope]
        counts = (start.descriptors, end.descriptors, start.threads, end.threads)
        rows.append([each.name, *memory, *map(str, counts)])
    return rows


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    is_text = [not any(row[index][:1].isdigit() for row in rows[1:]) and not rows[1:][0][index].startswith(("+", "-"))
               for index in range(len(widths))] if rows[1:] else [True] * len(widths)  # fmt: skip
    return "\n".join(
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in rows
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Give everything as values that JSON can hold."""
    ledger = outcome.ledger
    return {
        "schema": "soak/1",
        "setting": asdict(outcome.setting),
        "traffic": [
            {"phase": phase, "model": model, **_account(account)}
            for phase, model, account in [*ledger.accounts(), ("all", "", ledger.total())]
        ],
        "kills": [{**asdict(kill), "recovery_s": kill.recovery_s} for kill in ledger.kills],
        "misbehaving": dict(outcome.misbehaved),
        "processes": [asdict(each) for each in outcome.held],
        "findings": findings(outcome),
    }


def _account(account: Account) -> dict[str, Any]:
    return {
        "requests": account.sent,
        "statuses": {str(status): count for status, count in sorted(account.statuses.items())},
        "verdicts": {str(verdict): count for verdict, count in account.verdicts.items()},
        "unanswered": account.unanswered,
        "lost": dict(account.lost),
        "crossed": account.crossed,
        "wrong": account.wrong,
        "unexpected": {str(status): count for status, count in sorted(account.unexpected.items())},
        "held_back": account.held_back,
        "slowest_s": account.slowest_s,
    }
