"""What a worker imports before it is ready: every heavy module is seconds of its start, and of every restart."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.models import ROOT

# Each takes a second and more, and brings the ones behind it along.
HEAVY = frozenset(
    {
        "torchvision",
        "torch._dynamo",
        "torch._inductor",
        "torch.distributed.tensor",
        "torch.onnx",
        "openvino.torch",
        "openvino.frontend.pytorch",
        "openvino",
        "google.protobuf.descriptor_pool",
        "sympy",
        "transformers",
        "transformers.modeling_utils",
        "onnxruntime",
        "scipy",
        "sklearn",
        "pandas",
    }
)
# A task, its engine, what its archive's folder is staged from -> those of HEAVY that its worker may import.
ALLOWED = {
    ("image_classification", "openvino", "mobilenet-v2"): {"openvino"},
    ("sentence_embedding", "openvino", "sentence-embedding"): {"openvino", "transformers"},
    ("language_id", "auto", "language-id"): set(),
    ("tokenization", "auto", "tokenizer"): {"transformers"},
}
# Starts one as TorchServe does, and says what it has imported.
WORKER = """
import json, sys
from importlib import import_module
from pathlib import Path
from tests.handlers.serving import context

task, folder, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
module = import_module(f"handlers.tasks.{task}")
(handler,) = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
              and isinstance(each, type)]
worker = handler()
worker.initialize(context(folder, settings))
print(json.dumps(sorted(sys.modules)))
"""
# Asks it for its metadata, as a gateway does, and waits for what comes of that.
ASKING = f"""{WORKER}
import time
worker.runner.read({{}}, {{"X-Model-Metadata": "1"}})
ends_s = time.monotonic() + 20
while "handlers.protocol.grpc_inference" not in sys.modules and time.monotonic() < ends_s:
    time.sleep(0.01)
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(script: str, *arguments: str) -> set[str]:
    """What a Python of its own has imported at the end of a script, which prints it."""
    finished = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # What is blocked while TorchServe's base class is imported is not worth a line that reads like a fault.
    assert "OpenVINO is not enabled" not in finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("task", "engine", "name"), list(ALLOWED), ids=str)
def test_worker_imports_no_heavy_module_that_its_engine_has_no_use_for(
    task: str, engine: str, name: str, staged_example: Callable[[str], Path]
) -> None:
    settings: dict[str, Any] = {"engine": engine}
    if task == "image_classification":
        settings["arch"] = "mobilenet_v2"
    imported = modules_after(WORKER, task, str(staged_example(name)), json.dumps(settings))
    assert HEAVY & imported <= ALLOWED[task, engine, name]


def test_tasks_together_import_no_engine_but_openvino_and_the_tokenizers() -> None:
    tasks = [f"handlers.tasks.{path.stem}" for path in (ROOT / "handlers" / "tasks").glob("[a-z]*.py")]
    assert len(tasks) >= 8
    imported = modules_after(f"import json, sys, {', '.join(tasks)}; print(json.dumps(sorted(sys.modules)))")
    assert HEAVY & imported <= {"openvino", "transformers"}


def test_worker_that_has_a_gateway_imports_protobuf_before_it_is_needed(staged_example: Callable[[str], Path]) -> None:
    folder = str(staged_example("language-id"))
    assert "handlers.protocol.grpc_inference" in modules_after(ASKING, "language_id", folder, '{"engine": "auto"}')
