"""The OpenVINO graph of our archive, for peers; the peers' environments import this module.

PeerGraph -> the environment of a peer's process -> PeerGraph -> compile
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
TIMEOUT_S = 60.0  # timeout of a request in seconds for peers that need one; too long to affect batches


@dataclass(frozen=True, slots=True)
class PeerGraph:
    """A graph and the settings that every peer has."""

    path: str  # of a graph, (B, *shape) float32 -> (B, scores) float32
    shape: tuple[int, ...]
    scores: int
    batch_size: int
    threads: int  # of all copies together: as many as ours has
    copies: int = 1  # BentoML's workers, LitServe's workers and HTTP servers, PyTriton's functions
    wait_ms: float = 1.0  # BentoML's max_latency_ms, LitServe's batch_timeout, PyTriton's max_queue_delay

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "PeerGraph":
        fields = json.loads(os.environ[VARIABLE])
        return cls(**{**fields, "shape": tuple(fields["shape"])})

    def compile(self) -> Callable[[Any], Any]:
        """Return a function from rows to scores: one copy of one stream, as OpenVINO advises, or without pinning."""
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": max(1, self.threads // self.copies),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        request = openvino.Core().compile_model(self.path, "CPU", settings).create_infer_request()
        return lambda rows: np.array(request.infer({INPUT: rows}, share_inputs=True, share_outputs=True)[0])
