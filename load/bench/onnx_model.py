"""The ONNX file that a peer serves, and onnxruntime for it; imported by the peers' own environments."""

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

import onnxruntime

VARIABLE = "BENCH_ONNX"
INPUT, OUTPUT = "rows", "scores"
# Seconds until a request counts as unanswered, where a peer asks: no limit that batches are made for.
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Given:
    """What every peer is given.

    Attributes:
        path: an ONNX file with one input and one output of float32, whose first dimension counts rows.
        shape: of a row.
        scores: numbers that a row is answered with.
        batch_size: most rows of a run.
        threads: of a run: as many as ours has.
        processes: of the peer, as far as it has a choice: BentoML's workers, LitServe's HTTP servers.
    """

    path: str
    shape: tuple[int, ...]
    scores: int
    batch_size: int
    threads: int
    processes: int = 1

    def environment(self) -> dict[str, str]:
        """Return the variable that a process reads it from."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "Given":
        """Read it in a process that was started with it."""
        fields = json.loads(os.environ[VARIABLE])
        return cls(**{**fields, "shape": tuple(fields["shape"])})


class Session:
    """The model, loaded."""

    def __init__(self, given: Given) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = given.threads
        options.inter_op_num_threads = 1
        # A thread that waits for the next run leaves its core to the HTTP server and to the load generator.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(given.path, options, providers=["CPUExecutionProvider"])

    def run(self, rows: Any) -> Any:
        """Run rows, (B, *shape) float32, to scores, (B, scores) float32."""
        (scores,) = self._session.run(None, {INPUT: rows})
        return scores
