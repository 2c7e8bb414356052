"""Engines agree with torch in fp32, for any batch size, on any processor; the caller owns their outputs."""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset13 as opset

from deploy.models import ROOT
from handlers.engines import Engine
from handlers.engines.function import FunctionEngine
from handlers.engines.openvino import OpenVinoEngine, candidates
from handlers.engines.torch import TorchEngine, dtype_for, memory_errors
from handlers.errors import InvalidConfig, OutOfMemory
from handlers.proofs import Proof
from tests import graphs

CPU = torch.device("cpu")
BATCH_SIZES = (1, 3, 17)
# The relative error of logits in fp32: another order of sums moves these layers by 1e-7 on AVX2 and AVX-512.
FP32 = 1e-5
# In bf16 each factor is rounded to 8 bits, by 2**-9 at most.
BF16 = 1e-2


class Network(torch.nn.Sequential):
    """Three layers: a deep network of random weights would amplify rounding."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        layers = torch.nn
        super().__init__(
            layers.Conv2d(3, 16, 3, stride=2),
            layers.ReLU(),
            layers.Conv2d(16, 32, 3, stride=2),
            layers.ReLU(),
            layers.Flatten(),
            layers.Linear(32 * 3 * 3, 10),
        )


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "model.xml"
    images = opset.parameter([-1, 3, 16, 16])
    graphs.save(graphs.follow(Network(), images), images, ("input", "logits"), path)
    return path


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(17, 3, 16, 16)).astype(np.float32)


def torch_engine(device: torch.device, precision: str) -> TorchEngine:
    dtype = dtype_for(device, precision)

    class Cast(torch.nn.Module):
        """Accepts float32, like classifiers."""

        def __init__(self) -> None:
            super().__init__()
            self.network = Network().to(device, dtype)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.network(input.to(dtype))
            return logits

    return TorchEngine(Cast(), device, ["input"], ["logits"])


@pytest.mark.parametrize(
    ("library", "precision", "tolerance"),
    [
        ("openvino", "fp32", FP32),
        pytest.param("openvino", "bf16", BF16, marks=pytest.mark.bf16),
        ("cpu", "fp32", FP32),
        ("cpu", "bf16", BF16),
        ("cpu", "auto", FP32),
        pytest.param("cuda", "auto", BF16, marks=pytest.mark.gpu),
        pytest.param("cuda", "fp32", FP32, marks=pytest.mark.gpu),
    ],
)
def test_engine_any_batch_size_stays_within_tolerance_of_torch_fp32(
    library: str, precision: Any, tolerance: float, graph: Path, images: NDArray[np.float32]
) -> None:
    engine: Engine = (
        OpenVinoEngine(graph, precision=precision)
        if library == "openvino"
        else torch_engine(torch.device(library), precision)
    )
    name = {"fp32": "float32", "bf16": "bfloat16"}.get(precision, "")
    assert engine.description.startswith(f"openvino cpu {precision}" if library == "openvino" else f"torch {library}")
    assert library == "openvino" or name in engine.description
    with torch.inference_mode():
        expected = Network().eval()(torch.from_numpy(images)).numpy()
    for size in BATCH_SIZES:
        logits = engine.run({"input": images[:size]})["logits"]
        assert logits.shape == (size, 10)
        assert logits.dtype == np.float32
        error = np.linalg.norm(logits - expected[:size]) / np.linalg.norm(expected[:size])
        assert error < tolerance


def test_openvino_outputs_survive_the_next_run(graph: Path, images: NDArray[np.float32]) -> None:
    engine = OpenVinoEngine(graph, precision="fp32")
    first = engine.run({"input": images[:2]})["logits"]
    kept = first.copy()
    engine.run({"input": images[2:4]})
    assert np.array_equal(first, kept)


# Runs a graph with no more memory than the process has, where an image needs 13 MB, and then without a limit. Prints
# the outcome of each run; exits with 3 at an answer of another run.
WITHOUT_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np, psutil
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import OutOfMemory

engine = OpenVinoEngine(Path(sys.argv[1]), precision="fp32", threads=1)
images = np.random.default_rng(0).random((16, 3, 160, 160), np.float32)
images *= 1.5 ** np.arange(16, dtype=np.float32)[:, None, None, None]
alone = np.concatenate([engine.run({"images": image[None]})["means"] for image in images])
draw = np.random.default_rng(1)
limits = [psutil.Process().memory_info().vms, resource.RLIM_INFINITY]
for limit in limits:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    for _ in range(25):
        first, count = draw.integers(0, 8), draw.integers(1, 9)
        try:
            means = engine.run({"images": images[first : first + count]})["means"]
        except (OutOfMemory, RuntimeError):
            print("without memory", flush=True)
            continue
        if means.shape != (count, 64) or not np.allclose(means, alone[first : first + count], rtol=0.01):
            sys.exit(3)
        print("answered", flush=True)
"""


def test_openvino_without_memory_never_returns_the_answers_of_another_run(tmp_path: Path) -> None:
    images = opset.parameter([-1, 3, 160, 160], np.float32, name="images")
    kernels = np.random.default_rng(2).random((64, 3, 3, 3), np.float32)
    layer = opset.convolution(images, opset.constant(kernels), [1, 1], [1, 1], [1, 1], [1, 1])
    kernels = np.random.default_rng(3).random((64, 64, 3, 3), np.float32)
    layer = opset.convolution(opset.relu(layer), opset.constant(kernels), [1, 1], [1, 1], [1, 1], [1, 1])
    means = opset.reduce_mean(layer, [2, 3])
    means.output(0).get_tensor().set_names({"means"})
    openvino.save_model(openvino.Model([means], [images], "means"), tmp_path / "model.xml", compress_to_fp16=False)
    command = [sys.executable, "-c", WITHOUT_MEMORY, str(tmp_path / "model.xml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # It may end the worker, or crash OpenVINO and so the worker: TorchServe starts another.
    assert "without memory" in done.stdout or done.returncode
    assert done.returncode <= 1, (done.returncode, done.stderr)
    assert done.returncode or done.stdout.endswith("answered\n" * 25)


# Makes the engine compile its graph again, with no more memory than the process has.
COMPILES_AGAIN = """
import resource, sys
from pathlib import Path
import numpy as np, psutil
from handlers.engines.openvino import OpenVinoEngine

engine = OpenVinoEngine(Path(sys.argv[1]), precision="fp32", threads=2)
try:
    engine.run({"input": np.zeros((1, 4, 16, 16), np.float32)})
except RuntimeError:
    print("refused", flush=True)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms, resource.RLIM_INFINITY))
engine.run({"input": np.zeros((1, 3, 16, 16), np.float32)})
"""


def test_openvino_that_cannot_compile_its_graph_again_ends_the_worker(graph: Path) -> None:
    command = [sys.executable, "-c", COMPILES_AGAIN, str(graph)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "refused\n")
    assert done.stderr.startswith("OpenVINO cannot compile the model's graph again: ")


def test_openvino_divided_gives_the_results_of_the_whole_side_by_side(graph: Path, images: NDArray[np.float32]) -> None:
    whole = OpenVinoEngine(graph, precision="fp32", threads=2)
    arrangement = whole.divide(8)
    assert arrangement.whole is whole
    assert [stream.input_names for stream in arrangement.streams] == [whole.input_names] * 2
    wanted = [whole.run({"input": part})["logits"] for part in (images[:9], images[9:])]
    with ThreadPoolExecutor(2) as pool:
        got = list(
            pool.map(lambda stream, part: stream.run({"input": part}), arrangement.streams, (images[:9], images[9:]))
        )
    for outputs, logits in zip(got, wanted, strict=True):
        np.testing.assert_allclose(outputs["logits"], logits, rtol=0, atol=FP32 * np.abs(logits).max())
    assert not whole.divide(1).streams
    assert not OpenVinoEngine(graph, precision="fp32", threads=1).divide(2).streams


def proof(agreement: float) -> Proof:
    return Proof("top-1", agreement, None, 100, 0.99)


@pytest.mark.parametrize(
    ("capabilities", "proven", "has_int8", "wanted"),
    [
        ({"FP32", "BF16"}, {}, False, ("bf16", "fp32")),
        ({"FP32"}, {}, False, ("fp32",)),
        ({"FP32", "BF16"}, {"bf16": proof(0.9)}, False, ("fp32",)),
        ({"FP32", "BF16"}, {"bf16": proof(1.0), "int8": proof(1.0)}, True, ("bf16", "fp32", "int8")),
        ({"FP32", "BF16"}, {"int8": proof(0.9)}, True, ("bf16", "fp32")),
    ],
)
def test_openvino_auto_chooses_among_what_the_processor_has_and_no_proof_refutes(
    capabilities: set[str], proven: dict[str, Proof], has_int8: bool, wanted: tuple[str, ...]
) -> None:
    assert candidates(capabilities, proven, has_int8=has_int8) == wanted


def test_openvino_precision_that_cannot_be_had_is_refused(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match=r"int8 needs model-int8\.xml, which this archive lacks"):
        OpenVinoEngine(graph, precision="int8")
    with pytest.raises(InvalidConfig, match="torch, the engine of this model, has no int8"):
        dtype_for(CPU, "int8")
    with pytest.raises(InvalidConfig, match=r"openvino needs other\.xml, which this archive lacks"):
        OpenVinoEngine(graph.with_name("other.xml"))
    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "INT8"])
    assert OpenVinoEngine(graph).description == "openvino cpu fp32"
    with pytest.raises(InvalidConfig, match="this processor has no bf16 instructions; use fp32 or auto"):
        OpenVinoEngine(graph, precision="bf16")


# Compiles a graph in streams, and crashes like a library.
CRASH = """
import os, signal, sys
from pathlib import Path
import openvino
from handlers.engines.openvino import OpenVinoEngine
graph, compile_model = Path(sys.argv[1]), openvino.Core.compile_model
def crash(core, model, device, settings):
    if settings["NUM_STREAMS"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGFPE)
    return compile_model(core, model, device, settings)
openvino.Core.compile_model = crash
OpenVinoEngine(graph, precision="fp32", threads=2).divide(2)
"""


def test_openvino_compilation_that_ended_a_process_is_not_tried_again(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    assert len(OpenVinoEngine(graph, precision="fp32", threads=2).divide(2).streams) == 2
    assert not [*tmp_path.iterdir()]
    for streams in ("2", "1"):
        process = subprocess.run([sys.executable, "-c", CRASH, str(graph), streams], cwd=ROOT, check=False, timeout=60)
        assert process.returncode == -signal.SIGFPE
        if streams == "2":
            assert not OpenVinoEngine(graph, precision="fp32", threads=2).divide(2).streams
    assert "fp32 for 2 streams, 2 threads: Floating point exception" in caplog.text
    with pytest.raises(InvalidConfig, match=r"fp32 for 1 streams, 2 threads: Floating .* use fp32, or another number"):
        OpenVinoEngine(graph, precision="fp32", threads=2)
    assert OpenVinoEngine(graph, precision="fp32", threads=1).run({"input": np.zeros((1, 3, 16, 16), np.float32)})


def test_openvino_does_not_compile_rotary_positions_in_bf16_for_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # openvino#33300: SIGFPE, on any processor that has bf16.
    angles = opset.parameter([-1, 8], np.float32, name="input")
    turned = opset.add(opset.sin(angles), opset.cos(angles))
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([turned], [angles], "rotary"), path)
    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "BF16"])
    for cores, threads, wanted in ((8, 1, ["fp32"]), (1, 4, ["fp32"]), (8, 2, ["bf16", "fp32"])):
        monkeypatch.setattr("handlers.engines.openvino.usable_cores", lambda cores=cores: cores)
        assert OpenVinoEngine(path, threads=threads).precisions == wanted
    assert not OpenVinoEngine(path, precision="bf16", threads=2).divide(2).streams


@pytest.mark.parametrize(("precision", "hint"), [("fp32", "f32"), ("bf16", "bf16")])
def test_openvino_is_asked_for_the_precision(
    precision: Any, hint: str, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without AVX-512, a compiled graph always reports fp32.
    asked: list[Any] = []
    compile_model = openvino.Core.compile_model

    def note(core: openvino.Core, model: openvino.Model, device: str, settings: Any) -> openvino.CompiledModel:
        asked.append(settings["INFERENCE_PRECISION_HINT"])
        return compile_model(core, model, device, settings)

    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "BF16"])
    monkeypatch.setattr(openvino.Core, "compile_model", note)
    engine = OpenVinoEngine(graph, precision=precision)
    # Another engine would compile the graph again.
    assert engine.in_precision(precision) is engine
    assert asked == [hint]


LOST_GPU = """
import numpy as np, torch
from handlers.engines.torch import TorchEngine

class Table(torch.nn.Embedding):
    def forward(self, x):
        return super().forward(x)

engine = TorchEngine(Table(10, 4).to("cuda:0"), torch.device("cuda", 0), ["x"], ["y"])
engine.run({"x": np.full(2, 9)})
print(engine.run({"x": np.full(2, 10**6)}))
"""


def failing(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("openvino", RuntimeError("Exception from src: std::bad_alloc")),
        ("function", MemoryError()),
        ("torch", torch.OutOfMemoryError()),
    ],
)
def test_failed_allocation_is_told_apart_so_that_the_micro_batch_is_halved(
    name: str, error: Exception, graph: Path
) -> None:
    def run(raised: Exception) -> None:
        module: Any = torch.nn.Linear(1, 1)
        module.forward = failing(raised)
        engines: dict[str, Callable[[], Any]] = {
            "openvino": lambda: OpenVinoEngine(graph, precision="fp32"),
            "torch": lambda: TorchEngine(module, CPU, ["input"], ["y"]),
            "function": lambda: FunctionEngine(failing(raised), ["input"]),
        }
        engine = engines[name]()
        if name == "openvino":
            engine._whole._request = SimpleNamespace(infer=failing(raised))
        engine.run({"input": np.zeros((1, 1), np.float32)})

    with pytest.raises(OutOfMemory):
        run(error)
    with pytest.raises(RuntimeError, match="a bug"):
        run(RuntimeError("a bug"))


@pytest.mark.gpu
def test_gpu_that_computes_nothing_more_ends_the_worker_in_one_line() -> None:
    """An index outside of its table is such an error: every later call fails."""
    ended = subprocess.run([sys.executable, "-c", LOST_GPU], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = [line for line in ended.stderr.splitlines() if "Assertion" not in line and line.strip()]
    assert line.startswith("cuda:0 cannot compute any more: ")
    assert line.endswith("CUDA error: device-side assert triggered; TorchServe starts a new worker")


@pytest.mark.parametrize(
    ("message", "free_share", "error"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", 0.5, OutOfMemory),
        ("CUDA error: out of memory", 0.5, OutOfMemory),
        ("GET was unable to find an engine to execute this computation", 0.05, OutOfMemory),
        ("Unable to find a valid cuDNN algorithm to run convolution", 0.05, OutOfMemory),
        ("GET was unable to find an engine to execute this computation", 0.5, RuntimeError),
        ("a bug", 0.05, RuntimeError),
    ],
)
def test_allocation_that_a_library_of_cuda_cannot_make_is_out_of_memory(
    message: str, free_share: float, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(1000 * free_share), 1000))
    with pytest.raises(error), memory_errors(torch.device("cuda", 0)):
        raise RuntimeError(message)


@pytest.mark.gpu
def test_cuda_out_of_memory_is_told_apart() -> None:
    class Hog(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(2**50, device=x.device)

    with pytest.raises(OutOfMemory):
        TorchEngine(Hog(), torch.device("cuda", 0), ["x"], ["y"]).run({"x": np.zeros(1, np.float32)})
