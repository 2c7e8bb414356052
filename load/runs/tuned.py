"""What `tune` measured of a model and advises for it, stored as one small file: tune.json.

    Curve, Points, Advice, the rate that held -> Tuned -> save / read -> load.autoscale

README.md of load/ documents the fields; a name ends in its unit.
"""

from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from load.errors import BadRun, CannotWrite
from load.runs.tune import Advice, Curve, Point

SCHEMA = "load-tune/1"


@dataclass(frozen=True, slots=True)
class Held:
    """The highest Poisson rate that kept the latency, verified by a run of its own, at one server.

    Attributes:
        rate_per_s: requests per second.
        mean_ms: mean latency at that rate.
        p99_ms: its 99th percentile.
    """

    rate_per_s: float
    mean_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """One run of `python -m load tune`.

    Attributes:
        model: name of the model.
        created_at: UTC, as in ISO 8601.
        latency_threshold_ms: most latency that was wanted.
        percentile: share of all requests, in %, that had to keep it.
        points: full batches that were measured, ascending.
        curve: the line through them.
        advice: what to register the model with.
        workers: how many workers of it.
        held: the rate that this held; None where not even the lowest that was tried did.
        ready_s: from registering it to READY, on a server that runs: the median of all variants.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str
    created_at: str
    latency_threshold_ms: float
    percentile: float
    points: list[Point]
    curve: Curve
    advice: Advice
    workers: int
    held: Held | None
    ready_s: float
    schema: str = SCHEMA

    def save(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            CannotWrite: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def read(cls, path: Path) -> "Tuned":
        """Read what `save` wrote.

        Raises:
            BadRun: the file cannot be read, or is something else.
        """
        try:
            tuned = _ADAPTER.validate_json(path.read_bytes())
        except OSError as error:
            raise BadRun(f"cannot read {path}: {error.strerror or error}") from error
        except ValidationError as error:
            raise BadRun(f"{path} holds no result of `python -m load tune --out`") from error
        if tuned.schema != SCHEMA:
            raise BadRun(f"{path} is of schema {tuned.schema}, this program reads {SCHEMA}: tune again")
        return tuned


_ADAPTER = TypeAdapter(Tuned)
