"""A stored run, run.json, the source of reports; README.md beside this file has its fields.

Every step contains its raw exchanges, for other reports later.
"""

from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from load import LoadError
from load.generate import Attack
from load.results import NO_ANSWER, OK, Exchange, Recording, Summary, Verdict
from torchserve_client.payloads import Json

SCHEMA = "load-run/1"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    kind: str
    value: float
    repeat: int
    started_at: str
    is_valid: bool
    invalid_reason: str | None
    window_s: float
    requests: int
    throughput_per_s: float
    goodput_per_s: float
    latency_threshold_ms: float | None
    latency_ms: dict[str, float]
    in_time_percent: float
    status: dict[str, int]
    connection_errors: dict[str, int]
    answers: dict[str, int]
    generator_lag_ms: dict[str, float]
    generator_cpu_percent: float
    requests_by_batch_size: dict[str, int]
    mean_batch_size: float | None
    server_ms: dict[str, float]
    exchanges: dict[str, list[Any]]  # attribute of Exchange -> its values; times in s since the window opened
    outcomes: dict[str, int] = field(default_factory=dict)  # "in time", "late", "refused", "failed" -> requests
    refusal: Json | None = None  # the first refused request

    @property
    def latencies_s(self) -> list[float]:
        """The latencies of the good responses to requests that were due within the window."""
        rows = zip(*(self.exchanges[name] for name in ("due_s", "answered_s", "status", "verdict")), strict=True)
        return [
            answered_s - due_s
            for due_s, answered_s, status, verdict in rows
            if due_s >= 0 and status == OK and verdict in (None, Verdict.RIGHT)
        ]


def make_step(attack: Attack, summary: Summary, recording: Recording, repeat: int, started_at: str) -> Step:
    columns = {each.name: [getattr(row, each.name) for row in recording.exchanges] for each in fields(Exchange)}
    for name in ("due_s", "sent_s", "answered_s"):
        columns[name] = [round(time_s - recording.opens_s, 6) for time_s in columns[name]]  # to the microsecond
    return Step(
        name=str(attack.load),
        kind=attack.load.kind,
        value=attack.load.value,
        repeat=repeat,
        started_at=started_at,
        is_valid=not summary.invalid_reasons,
        invalid_reason="; ".join(summary.invalid_reasons) or None,
        window_s=round(summary.window_s, 6),
        requests=summary.requests,
        throughput_per_s=summary.throughput_per_s,
        goodput_per_s=summary.goodput_per_s,
        latency_threshold_ms=attack.latency_threshold_ms,
        latency_ms=summary.latencies.statistics_ms(),
        in_time_percent=100 * summary.in_time / max(summary.requests, 1),
        status={str(status): count for status, count in summary.statuses.items() if status != NO_ANSWER},
        connection_errors=dict(summary.errors),
        answers={str(verdict): count for verdict, count in summary.verdicts.items()},
        generator_lag_ms=summary.lag.statistics_ms(),
        generator_cpu_percent=round(summary.cpu_percent, 1),
        requests_by_batch_size={str(size): count for size, count in summary.requests_by_batch_size.items()},
        mean_batch_size=summary.mean_batch_size,
        server_ms={name: round(value, 3) for name, value in summary.server_ms.items()},
        exchanges=columns,
        outcomes=summary.outcomes,
        refusal=None if recording.refusal is None else asdict(recording.refusal),
    )


@dataclass(frozen=True, slots=True)
class Run:
    label: str  # name of the run in reports
    created_at: str  # UTC, in ISO 8601
    model: str
    url: str  # of its predictions
    registration: Json  # in the management API's terms
    settings: Json  # options of the command line
    inputs: list[str]  # names, by number
    steps: list[Step] = field(default_factory=list)
    schema: str = SCHEMA

    def save(self, path: Path) -> None:
        write(path, orjson.dumps(self, default=str))

    @classmethod
    def read(cls, path: Path) -> "Run":
        try:
            run = TypeAdapter(Run).validate_json(path.read_bytes())
        except OSError as error:
            raise LoadError(f"cannot read {path}: {error.strerror}") from error
        except ValidationError as error:
            raise LoadError(f"{path} is not a file of `torchserve-batching load run --out`") from error
        if run.schema != SCHEMA:
            raise LoadError(f"{path} has the schema {run.schema}, this program reads {SCHEMA}: measure it again")
        return run


def write(path: Path, data: bytes, mode: str = "wb") -> None:
    """Write a file, or raise LoadError; writing b"" in mode "ab" detects the error before an hour of measurements."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(data)
    except OSError as error:
        raise LoadError(f"cannot write {path}: {error.strerror}") from error
