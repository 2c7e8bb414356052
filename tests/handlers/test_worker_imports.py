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
# Each case in a process of its own, forked where nothing is imported but what every worker imports: PyTorch, once.
# Reads the cases as JSON, [what, its arguments], and prints what each has imported in the end, a line for each.
CASES = """
import json, os, sys, time
import handlers.base
from importlib import import_module
from pathlib import Path
from tests.handlers.serving import context

def tasks(*names):
    for name in names:
        import_module(f"handlers.tasks.{name}")

def worker(task, folder, settings):
    # As TorchServe starts one.
    module = import_module(f"handlers.tasks.{task}")
    (handler,) = [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
                  and isinstance(each, type)]
    made = handler()
    made.initialize(context(Path(folder), settings))
    return made

def asking(task, folder, settings):
    # For its metadata, as a gateway does; and waits for what comes of that.
    made = worker(task, folder, settings)
    made.runner.read({}, {"X-Model-Metadata": "1"})
    ends_s = time.monotonic() + 20
    while "handlers.protocol.grpc_inference" not in sys.modules and time.monotonic() < ends_s:
        time.sleep(0.01)

for case, arguments in json.load(sys.stdin):
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        globals()[case](*arguments)
        print(json.dumps(sorted(sys.modules)), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, (case, arguments)
"""
TASKS = tuple(path.stem for path in (ROOT / "handlers" / "tasks").glob("[a-z]*.py"))


@pytest.fixture(scope="module")
def imported(staged_example: Callable[[str], Path]) -> dict[Any, set[str]]:
    """What is imported by each worker of ALLOWED, under its key, by all `tasks`, and by a worker that is `asked`."""
    cases: dict[Any, tuple[str, list[Any]]] = {"tasks": ("tasks", list(TASKS))}
    for task, engine, name in ALLOWED:
        settings = {"engine": engine} | ({"arch": "mobilenet_v2"} if task == "image_classification" else {})
        cases[task, engine, name] = ("worker", [task, str(staged_example(name)), settings])
    cases["asked"] = ("asking", ["language_id", str(staged_example("language-id")), {"engine": "auto"}])
    finished = subprocess.run(
        [sys.executable, "-c", CASES],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        input=json.dumps(list(cases.values())),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    # What is blocked while TorchServe's base class is imported is not worth a line that reads like a fault.
    assert "OpenVINO is not enabled" not in finished.stderr
    printed = [set(json.loads(line)) for line in finished.stdout.splitlines() if line.startswith("[")]
    return dict(zip(cases, printed, strict=True))


@pytest.mark.parametrize("case", list(ALLOWED), ids=str)
def test_worker_imports_no_heavy_module_that_its_engine_has_no_use_for(
    case: tuple[str, str, str], imported: dict[Any, set[str]]
) -> None:
    assert HEAVY & imported[case] <= ALLOWED[case]


def test_tasks_together_import_no_engine_but_openvino_and_the_tokenizers(imported: dict[Any, set[str]]) -> None:
    assert len(TASKS) >= 8
    assert HEAVY & imported["tasks"] <= {"openvino", "transformers"}


def test_worker_that_has_a_gateway_imports_protobuf_before_it_is_needed(imported: dict[Any, set[str]]) -> None:
    assert "handlers.protocol.grpc_inference" in imported["asked"]
