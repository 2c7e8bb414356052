"""A stored run, run.json, is the one thing that tables, pages and comparisons are made of.

    Summary, ServerStatistics, Recording -> StepResult -> Run -> save / read

Every step carries its raw exchanges, so that a report can be made anew later, and differently. README.md of load/
documents the fields; a name ends in its unit.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Annotated, Any, cast

import orjson
from pydantic import PlainValidator, TypeAdapter, ValidationError

from load.errors import BadRun, CannotWrite
from load.measure.exchange import NO_ANSWER, Exchange, Verdict
from load.measure.exchanges import Exchanges
from load.measure.recording import Recording
from load.measure.server_metrics import ServerStatistics
from load.measure.summary import Summary
from load.runs.scenarios import Step

SCHEMA = "load-run/1"
COMPRESSED = ".gz"
# zlib's own default, a compromise of time and size; Python's gzip would take 9, the slowest.
GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True)
class StepResult:
    """One measured load; README.md of load/ says what each field holds."""

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
    answers: dict[Verdict, int]
    bytes: dict[str, int]
    generator_lag_ms: dict[str, float]
    generator_cpu_percent: float
    requests_by_batch_size: dict[str, int]
    forward_passes: dict[str, int]
    mean_batch_size: float | None
    server_ms: dict[str, float]
    # By column in the file; times are in seconds from the opening of the window.
    exchanges: Annotated[Exchanges, PlainValidator(Exchanges.of_columns)]

    @classmethod
    def of(
        cls,
        step: Step,
        summary: Summary,
        recording: Recording,
        server: ServerStatistics | None,
        *,
        repeat: int,
        started_at: str,
        latency_threshold_ms: float | None,
    ) -> "StepResult":
        """Put together everything that is known of a step.

        Args:
            step: the load.
            summary: what its run came to.
            recording: the run's raw results.
            server: the server's own counts; None where it does not say.
            repeat: number of the repeat, from 1 on.
            started_at: UTC, as in ISO 8601.
            latency_threshold_ms: most latency of an answer that goodput counts; None counts every good answer.
        """
        sizes = summary.timings.requests_by_batch_size
        # The answers' own words cover the window alone; the counters serve for handlers that say nothing.
        stages = {**(server.stages_ms if server else {}), **summary.timings.mean_ms}
        queue = {"queue": server.queue_ms} if server and server.queue_ms is not None else {}
        return cls(
            name=str(step),
            kind=step.kind,
            value=step.value,
            repeat=repeat,
            started_at=started_at,
            is_valid=summary.is_valid,
            invalid_reason="; ".join(summary.invalid_reasons) or None,
            window_s=round(summary.window_s, 6),
            requests=summary.requests,
            throughput_per_s=summary.throughput_per_s,
            goodput_per_s=summary.goodput_per_s,
            latency_threshold_ms=latency_threshold_ms,
            latency_ms=summary.latencies.statistics_ms(),
            in_time_percent=100 * summary.in_time / summary.requests if summary.requests else 0.0,
            status={str(status): count for status, count in summary.statuses.items() if status != NO_ANSWER},
            connection_errors=dict(summary.errors),
            answers=dict(summary.verdicts),
            bytes={"sent": summary.sent_bytes, "received": summary.received_bytes},
            generator_lag_ms=summary.lag.statistics_ms(),
            generator_cpu_percent=round(summary.cpu_percent, 1),
            requests_by_batch_size={str(size): count for size, count in sizes.items()},
            forward_passes=server.micro_batches if server else {},
            mean_batch_size=summary.timings.mean_batch_size or (server.mean_batch_size if server else None),
            server_ms={**queue, **{name: round(value, 3) for name, value in stages.items()}},
            exchanges=recording.exchanges.since(recording.opens_s),
        )

    @property
    def counted(self) -> Iterator[Exchange]:
        """The exchanges that were due within the window."""
        return (each for each in self.exchanges if each.due_s >= 0)


@dataclass(frozen=True, slots=True)
class Run:
    """Several loads on one model, measured one after the other.

    Attributes:
        label: name of the run in reports.
        created_at: UTC, as in ISO 8601.
        model: name of the model.
        url: address of the prediction.
        registration: what the model is registered with, in the management API's words.
        settings: options of the command line.
        inputs: names of the inputs, by number.
        steps: results in the order of measurement.
        schema: name and version of the file's format.
    """

    label: str
    created_at: str
    model: str
    url: str
    registration: dict[str, Any]
    settings: dict[str, Any]
    inputs: list[str]
    steps: list[StepResult] = field(default_factory=list)
    schema: str = SCHEMA

    def save(self, path: Path) -> None:
        """Write the run as JSON, compressed where the name ends in .gz.

        Raises:
            CannotWrite: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _to_write(path) as file:
                file.writelines(self._json())
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error

    def _json(self) -> Iterator[bytes]:
        """Yield the file in pieces, so that the JSON of a long run is never in memory as a whole."""
        yield _fields(self, but="steps") + b',"steps":['
        for place, step in enumerate(self.steps):
            yield (b"," if place else b"") + _fields(step, but="exchanges") + b',"exchanges":'
            yield from step.exchanges.to_json()
            yield b"}"
        yield b"]}"

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Read what `save` wrote.

        Raises:
            BadRun: the file cannot be read, or is something else.
        """
        try:
            data = path.read_bytes()
            run = _ADAPTER.validate_json(gzip.decompress(data) if path.suffix == COMPRESSED else data)
        except OSError as error:
            raise BadRun(f"cannot read {path}: {error.strerror or error}") from error
        except (ValidationError, EOFError) as error:
            raise BadRun(f"{path} holds no run of `python -m load run --out`") from error
        if run.schema != SCHEMA:
            raise BadRun(f"{path} is of schema {run.schema}, this program reads {SCHEMA}: measure it again")
        return run


_ADAPTER = TypeAdapter(Run)


def _fields(value: Run | StepResult, but: str) -> bytes:
    """Write a dataclass but one field, as a JSON object without its end; infinities become null, which JSON lacks."""
    wanted = {each.name: getattr(value, each.name) for each in fields(value) if each.name != but}
    return orjson.dumps(wanted, option=orjson.OPT_NON_STR_KEYS)[:-1]


def _to_write(path: Path) -> IO[bytes]:
    if path.suffix == COMPRESSED:
        return cast(IO[bytes], gzip.open(path, "wb", GZIP_LEVEL))
    return path.open("wb")
