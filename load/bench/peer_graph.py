"""The OpenVINO graph of our archive, as a peer serves it; the peers' own environments import this.

Given -> the environment of a peer's process -> Given -> run
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import openvino

VARIABLE = "BENCH_GRAPH"
INPUT = "rows"
OUTPUT = "scores"
# Seconds until a request counts as unanswered, where a peer asks: no limit that batches are made for.
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Given:
    """What every peer is given."""

    path: str  # of a graph, (B, *shape) float32 -> (B, scores) float32
    shape: tuple[int, ...]
    scores: int
    batch_size: int
    threads: int  # of all copies: as many as ours has
    copies: int = 1  # BentoML's workers, LitServe's workers and HTTP servers, PyTriton's functions

    def to_environment(self) -> dict[str, str]:
        """Return the variable that a process reads it from."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "Given":
        """Read it in a process that was started with it."""
        fields = json.loads(os.environ[VARIABLE])
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def run(self) -> Callable[[Any], Any]:
        """Compile one copy as ours is (handlers.engines.openvino); what is returned runs rows to scores.

        OpenVINO's documentation advises one stream for a server that runs one batch at a time, and copies in several
        processes are to divide the cores, unpinned.
        """
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": max(1, self.threads // self.copies),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        request = openvino.Core().compile_model(self.path, "CPU", settings).create_infer_request()
        return lambda rows: np.array(request.infer({INPUT: rows}, share_inputs=True, share_outputs=True)[0])
