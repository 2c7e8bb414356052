"""What a worker imports before it is ready: every heavy module is seconds of its start, and of every restart."""

import json
import os
import subprocess
import sys

from deploy.models import ROOT

# Each takes a second or more, and imports the ones behind it.
HEAVY = frozenset(
    {
        *("torchvision", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx", "sympy"),
        *("openvino", "openvino.torch", "openvino.frontend.pytorch", "onnxruntime", "google.protobuf.descriptor_pool"),
        *("transformers", "transformers.modeling_utils", "scipy", "sklearn", "pandas"),
    }
)
# Prints what is imported by then, a line of JSON each: one task without an engine of that kind; all tasks; and a worker
# that a gateway has asked for its metadata.
PROGRAM = """
import json, sys, time
from importlib import import_module

def printed():
    print(json.dumps(sorted(sys.modules)), flush=True)

import_module("handlers.tasks.language_id")
printed()
for task in sys.argv[1:]:
    import_module(f"handlers.tasks.{task}")
printed()

from types import SimpleNamespace
from handlers.metrics import Recorder
from handlers.pipeline.runner import Runner

Runner(SimpleNamespace(metadata=None), Recorder()).read({}, {"X-Model-Metadata": "1"})
ends_s = time.monotonic() + 60
while "handlers.protocol.grpc_inference" not in sys.modules and time.monotonic() < ends_s:
    time.sleep(0.01)
printed()
"""


def test_worker_imports_no_heavy_module_that_its_task_has_no_use_for_and_protobuf_once_it_has_a_gateway() -> None:
    tasks = [path.stem for path in (ROOT / "handlers" / "tasks").glob("[a-z]*.py")]
    assert len(tasks) >= 8
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, *tasks],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # What is blocked while TorchServe's base class is imported is not worth a line that reads like a fault.
    assert "OpenVINO is not enabled" not in finished.stderr
    alone, together, asked = (set(json.loads(line)) for line in finished.stdout.splitlines() if line.startswith("["))
    assert not HEAVY & alone
    assert HEAVY & together <= {"openvino", "transformers"}
    assert "handlers.protocol.grpc_inference" in asked
