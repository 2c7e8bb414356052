"""What a peer is given to serve, and the runtime it serves it with: onnxruntime, on the processor.

Given -> the environment of a peer's process -> Given -> Session.run: rows -> rows
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime

VARIABLE = "BENCH_ONNX"
# Seconds until a request counts as unanswered, where a peer asks: no limit that batches are made for.
MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Given:
    """The model and its settings, the same for every peer.

    Attributes:
        path: an ONNX file with one input and one output, whose first dimension counts rows.
        shape: of one row of float32.
        batch_size: most rows of a run.
        threads: of a run.
        processes: of the peer, as far as it has a choice: BentoML's workers, LitServe's HTTP servers.
    """

    path: str
    shape: tuple[int, ...]
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
    """A model that is loaded."""

    def __init__(self, given: Given) -> None:
        """Load it."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = given.threads
        options.inter_op_num_threads = 1
        # A thread that waits for the next run leaves its core to the server and to the clients.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(given.path)
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._name = self._session.get_inputs()[0].name

    def run(self, rows: Any) -> Any:
        """Run rows of float32, (B, ...), to rows of float32."""
        (output,) = self._session.run(None, {self._name: rows})
        return output
