"""The ONNX file that a peer serves, and onnxruntime for it; the peers' own environments import it.

Given -> the environment of a peer's process -> Given -> Session
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import onnxruntime

VARIABLE = "BENCH_ONNX"
INPUT, OUTPUT = "rows", "scores"
# Seconds until a request counts as unanswered, where a peer asks: no limit that batches are made for.
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Given:
    """What every peer is given."""

    path: str  # of an ONNX file, (B, *shape) float32 -> (B, scores) float32
    shape: tuple[int, ...]
    scores: int
    batch_size: int
    threads: int  # of a run: as many as ours has
    processes: int = 1  # BentoML's workers, LitServe's HTTP servers, PyTriton's models

    def to_environment(self) -> dict[str, str]:
        """Return the variable that a process reads it from."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "Given":
        """Read it in a process that was started with it."""
        fields = json.loads(os.environ[VARIABLE])
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def session(self) -> Callable[[Any], Any]:
        """Load the model; what is returned runs rows to scores."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        # A thread that waits for the next run leaves its core to the HTTP server and to the load generator.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        return lambda rows: session.run(None, {INPUT: rows})[0]
