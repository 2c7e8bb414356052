"""What came of a run as a table, and what it found as lines and as files.

outcomes -> table: a line for each task and mode
finding  -> kept: a file of found/ that test_found replays
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.fuzz import bodies
from tests.fuzz.kinds import KINDS
from tests.fuzz.outcome import Finding, Outcome
from tests.fuzz.sent import to_json

FOUND = Path(__file__).parent / "found"
# A larger one is told by its seed and number alone.
LARGEST_FILE = 64 * 1024
HEADINGS = ("task", "mode", "bodies", "statuses", "slowest answer", "RSS", "threads", "files", "findings")


def table(outcomes: Iterable[Outcome]) -> str:
    """A Markdown table."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(_row, outcomes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(outcome: Outcome) -> tuple[str, ...]:
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(outcome.statuses.items()))
    return (
        outcome.task.replace("_", " "),
        outcome.mode,
        f"{outcome.bodies}",
        statuses,
        f"{outcome.slowest_s:.2f} s (by {outcome.slowest_number})",
        f"{outcome.growth_mib:+.0f} MiB",
        f"{outcome.more_threads:+d}",
        f"{outcome.more_files:+d}",
        f"{len(outcome.findings)}",
    )


def lines(outcome: Outcome, seed: int) -> list[str]:
    """One line for each problem, with the command that sends its first request again."""
    counts = Counter(finding.problem for finding in outcome.findings)
    told = []
    for finding in distinct(outcome.findings):
        again = f"python -m tests.fuzz --task {outcome.task} --seed {seed} --only {finding.number}"
        how = f" [{', '.join(finding.how)}]" if finding.how else ""
        log = f"\n    {finding.log.splitlines()[-1][:300]}" if finding.log else ""
        told.append(f"{outcome.task}, {outcome.mode}: {counts[finding.problem]} x {finding.problem}{how}: {again}{log}")
    return told


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """The first finding of each problem."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.problem, finding)
    return list(first.values())


def keep(task: str, seed: int, number: int, problem: str, folder: Path = FOUND) -> Path | None:
    """Write a request as a file of found/; None where it is too large for one.

    Args:
        task: of the request.
        seed, number: of the request.
        problem: what did not hold.
        folder: where to.
    """
    document = {"task": task, "found": problem, "expected": None, **to_json(bodies.request(KINDS[task], seed, number))}
    text = json.dumps(document, indent=1, ensure_ascii=True) + "\n"
    if len(text) > LARGEST_FILE:
        return None
    path = folder / f"{task}-{seed}-{number}.json"
    path.write_text(text, encoding="utf-8")
    return path
