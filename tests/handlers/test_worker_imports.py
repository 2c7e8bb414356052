"""The imports of a worker before it is ready: every heavy module adds seconds to each start and restart."""

import json
import os
import subprocess
import sys

import pytest

from deploy.models import ROOT

pytestmark = pytest.mark.builds
# Each takes a second or more, and imports the ones behind it.
HEAVY = {
    *("torchvision", "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx", "sympy", "openvino"),
    *("openvino.torch", "openvino.frontend.pytorch", "onnxruntime", "google.protobuf.descriptor_pool", "transformers"),
    *("transformers.modeling_utils", "scipy", "sklearn", "pandas"),
}
# Prints what is imported after one task, which needs none of them, and after all tasks: a line of JSON each.
PROGRAM = """
import json, sys
from importlib import import_module

import ts
import_module("handlers.tasks.language_id")
print(json.dumps(sorted(sys.modules)))
for task in sys.argv[1:]:
    import_module(f"handlers.tasks.{task}")
print(json.dumps(sorted(sys.modules)))
"""
TASKS = [path.stem for path in (ROOT / "handlers" / "tasks").glob("[a-z]*.py")]


def test_worker_imports_no_heavy_module_that_its_task_has_no_use_for() -> None:
    assert len(TASKS) >= 8
    environment, command = {**os.environ, "PYTHONWARNINGS": "ignore"}, [sys.executable, "-c", PROGRAM, *TASKS]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    alone, together = (set(json.loads(line)) for line in finished.stdout.splitlines() if line.startswith("["))
    # A module that is blocked during the import of TorchServe's base class must not log a line that looks like a fault.
    assert "OpenVINO is not enabled" not in finished.stderr and not HEAVY & alone
    assert HEAVY & together <= {"openvino"}
