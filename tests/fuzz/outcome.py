"""What came of a run: what was answered, how quickly, what the worker holds since, and what does not hold."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

import psutil


@dataclass(slots=True)
class Finding:
    """Something that does not hold.

    Attributes:
        number: of the request; `--only` sends it again.
        problem: what is wrong.
        how: how the request came about.
        log: what the worker's log said.
    """

    number: int
    problem: str
    how: Sequence[str] = ()
    log: str = ""


class Usage(NamedTuple):
    """What the process holds."""

    rss_mib: float
    threads: int
    files: int

    @classmethod
    def of(cls, process: psutil.Process) -> "Usage":
        """Measure a process."""
        return cls(process.memory_info().rss / 2**20, process.num_threads(), process.num_fds())


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        task, mode: of whom.
        bodies: how many fuzzed requests were answered.
        statuses: how often each came.
        slowest_s: the slowest answer; that of a batch in classic mode, whose requests are answered together.
        slowest_number: one of whose batch it was.
        growth_mib: of the resident memory since the first third.
        findings: what does not hold.
    """

    task: str
    mode: str
    bodies: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest_number: int = 0
    growth_mib: float = 0.0
    more_threads: int = 0
    more_files: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> str:
        """Write it as one line."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({**values, "findings": [asdict(finding) for finding in self.findings]})

    @classmethod
    def of(cls, line: str) -> "Outcome":
        """Read such a line."""
        read = json.loads(line)
        statuses = Counter({int(status): count for status, count in read["statuses"].items()})
        return cls(**{**read, "statuses": statuses, "findings": [Finding(**each) for each in read["findings"]]})
