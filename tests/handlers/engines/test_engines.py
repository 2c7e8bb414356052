"""Engines agree with torch in fp32, for any batch size, on any processor; the caller owns their outputs."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import openvino
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset13 as opset

from deploy.hosts.serve import shares
from deploy.models import ROOT
from handlers.engines import Engine, available_threads
from handlers.engines.cores import usable_cores
from handlers.engines.function import FunctionEngine
from handlers.engines.openvino import OpenVinoEngine, candidates
from handlers.engines.program import ProgramEngine
from handlers.engines.torch import TorchEngine, dtype_for, memory_errors
from handlers.errors import InvalidConfig, OutOfMemory, OutOfRange
from tests import graphs
from tests.handlers.serving import Log, Patch, Temp
from tests.tables import table

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
        first = (layers.Conv2d(3, 16, 3, stride=2), layers.ReLU(), layers.Conv2d(16, 32, 3, stride=2), layers.ReLU())
        super().__init__(*first, layers.Flatten(), layers.Linear(32 * 3 * 3, 10))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: Temp) -> Path:
    path, images = tmp_path_factory.mktemp("graph") / "model.xml", opset.parameter([-1, 3, 16, 16])
    graphs.save(graphs.follow(Network(), images), images, ("input", "logits"), path)
    return path


@pytest.fixture(scope="module")
def images() -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(17, 3, 16, 16)).astype(np.float32)


def cast(device: torch.device, precision: Any) -> torch.nn.Module:
    dtype = dtype_for(device, precision)
    network = Network().to(device, dtype)
    network.register_forward_pre_hook(lambda _, args, kw: (args, {"input": kw["input"].to(dtype)}), with_kwargs=True)
    return network


@table(
    ("openvino", "fp32", FP32),
    pytest.param("openvino", "bf16", BF16, marks=pytest.mark.bf16),
    *(("cpu", "fp32", FP32), ("cpu", "bf16", BF16), ("cpu", "auto", FP32)),
    pytest.param("cuda", "auto", BF16, marks=pytest.mark.gpu),
    pytest.param("cuda", "fp32", FP32, marks=pytest.mark.gpu),
)
def test_engine_any_batch_size_stays_within_tolerance_of_torch_fp32(
    library: str, precision: Any, tolerance: float, graph: Path, images: NDArray[np.float32]
) -> None:
    if library == "openvino":
        engine: Engine = OpenVinoEngine(graph, precision=precision)
        assert engine.description.startswith(f"openvino cpu {precision}")
    else:
        device = torch.device(library)
        engine = TorchEngine(cast(device, precision), device, ["input"], ["logits"])
        name = {"fp32": "float32", "bf16": "bfloat16"}.get(precision, "")
        assert engine.description.startswith(f"torch {library}") and name in engine.description
    with torch.inference_mode():
        expected = Network().eval()(torch.from_numpy(images)).numpy()
    # Outputs of one run survive the next ones.
    for size, outputs in [(size, engine.run({"input": images[:size]})) for size in BATCH_SIZES]:
        logits = outputs["logits"]
        assert logits.shape == (size, 10) and logits.dtype == np.float32
        assert np.linalg.norm(logits - expected[:size]) / np.linalg.norm(expected[:size]) < tolerance


# Begins each program; its first argument may be a graph.
HEAD = """
import os, resource, signal, sys
from pathlib import Path
import numpy as np, openvino, psutil
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import OutOfMemory

graph = Path(sys.argv[1])
"""


def run_python(program: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", HEAD + program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)


# Runs a graph with no more memory than there is, and then without a limit; exits with 3 at an answer of another run.
WITHOUT_MEMORY = """
engine = OpenVinoEngine(graph, precision="fp32", threads=1)
images = np.random.default_rng(0).random((16, 3, 160, 160), np.float32)
images *= 1.5 ** np.arange(16, dtype=np.float32)[:, None, None, None]
alone = np.concatenate([engine.run({"images": image[None]})["means"] for image in images])
draw = np.random.default_rng(1)
for limit in (psutil.Process().memory_info().vms, resource.RLIM_INFINITY):
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
    layer = images = opset.parameter([-1, 3, 160, 160], np.float32, name="images")
    for seed, channels in ((2, 3), (3, 64)):
        kernels = opset.constant(np.random.default_rng(seed).random((64, channels, 3, 3), np.float32))
        layer = opset.relu(opset.convolution(layer, kernels, [1, 1], [1, 1], [1, 1], [1, 1]))
    means = opset.reduce_mean(layer, [2, 3])
    means.output(0).get_tensor().set_names({"means"})
    openvino.save_model(openvino.Model([means], [images], "means"), tmp_path / "model.xml", compress_to_fp16=False)
    done = run_python(WITHOUT_MEMORY, tmp_path / "model.xml")
    # It may end the worker, or crash OpenVINO and so the worker: TorchServe starts another.
    assert "without memory" in done.stdout or done.returncode
    assert done.returncode <= 1, (done.returncode, done.stderr)
    assert done.returncode or done.stdout.endswith("answered\n" * 25)


# Makes the engine compile its graph again, with no more memory than the process has.
COMPILES_AGAIN = """
engine = OpenVinoEngine(graph, precision="fp32", threads=2)
try:
    engine.run({"input": np.zeros((1, 4, 16, 16), np.float32)})
except RuntimeError:
    print("rejected", flush=True)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms, resource.RLIM_INFINITY))
engine.run({"input": np.zeros((1, 3, 16, 16), np.float32)})
"""


def test_openvino_that_cannot_compile_its_graph_again_ends_the_worker(graph: Path) -> None:
    done = run_python(COMPILES_AGAIN, graph)
    assert (done.returncode, done.stdout) == (1, "rejected\n")
    assert done.stderr.startswith("OpenVINO cannot compile the model's graph again: ")


def test_openvino_divided_gives_the_results_of_the_whole_side_by_side(graph: Path, images: NDArray[np.float32]) -> None:
    whole = OpenVinoEngine(graph, precision="fp32", threads=2)
    arrangement = whole.divide(8)
    assert arrangement.whole is whole
    assert [stream.input_names for stream in arrangement.streams] == [whole.input_names] * 2
    parts = (images[:9], images[9:])
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda stream, part: stream.run({"input": part}), arrangement.streams, parts))
    for outputs, part in zip(got, parts, strict=True):
        logits = whole.run({"input": part})["logits"]
        np.testing.assert_allclose(outputs["logits"], logits, rtol=0, atol=FP32 * np.abs(logits).max())
    assert not whole.divide(1).streams and not OpenVinoEngine(graph, precision="fp32", threads=1).divide(2).streams


def test_auto_lists_what_processor_and_archive_have_and_is_fp32_without_a_trial(
    graph: Path, monkeypatch: Patch
) -> None:
    assert candidates({"FP32", "BF16"}, has_int8=True) == ("bf16", "fp32", "int8")
    assert candidates({"FP32"}, has_int8=False) == ("fp32",)
    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "BF16"])
    assert OpenVinoEngine(graph).description == "openvino cpu fp32"


def test_openvino_precision_that_cannot_be_had_is_rejected(graph: Path, monkeypatch: Patch) -> None:
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


CRASH = """
compile_model = openvino.Core.compile_model
def crash(core, model, device, settings):
    if settings["NUM_STREAMS"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGFPE)
    return compile_model(core, model, device, settings)
openvino.Core.compile_model = crash
OpenVinoEngine(graph, precision="fp32", threads=2).divide(2)
"""


def test_compilation_that_crashed_is_not_repeated(graph: Path, tmp_path: Path, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setenv("CACHE_DIR", str(tmp_path))
    assert len(OpenVinoEngine(graph, precision="fp32", threads=2).divide(2).streams) == 2
    assert not [*tmp_path.iterdir()]
    for streams in ("2", "1"):
        assert run_python(CRASH, graph, streams).returncode == -signal.SIGFPE
        if streams == "2":
            assert not OpenVinoEngine(graph, precision="fp32", threads=2).divide(2).streams
    assert "fp32 for 2 streams, 2 threads: Floating point exception" in caplog.text
    with pytest.raises(InvalidConfig, match=r"fp32 for 1 streams, 2 threads: Floating .* use fp32, or another number"):
        OpenVinoEngine(graph, precision="fp32", threads=2)
    assert OpenVinoEngine(graph, precision="fp32", threads=1).run({"input": np.zeros((1, 3, 16, 16), np.float32)})


def test_openvino_does_not_compile_rotary_positions_in_bf16_on_one_thread(tmp_path: Path, monkeypatch: Patch) -> None:
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
def test_openvino_is_asked_for_the_precision(precision: Any, hint: str, graph: Path, monkeypatch: Patch) -> None:
    # Without AVX-512, a compiled graph always reports fp32.
    asked, compile_model = list[Any](), openvino.Core.compile_model

    def note(*given: Any) -> openvino.CompiledModel:
        asked.append(given[-1]["INFERENCE_PRECISION_HINT"])
        return compile_model(*given)

    monkeypatch.setattr(openvino.Core, "get_property", lambda *_: ["FP32", "BF16"])
    monkeypatch.setattr(openvino.Core, "compile_model", note)
    engine = OpenVinoEngine(graph, precision=precision)
    assert engine.in_precision(precision) is engine
    assert asked == [hint]


LOST_GPU = """
import torch
from handlers.engines.torch import TorchEngine
class Table(torch.nn.Embedding):
    def forward(self, x):
        return super().forward(x)

engine = TorchEngine(Table(10, 4).to("cuda:0"), torch.device("cuda", 0), ["x"], ["y"])
engine.run({"x": np.full(2, 9)})
print(engine.run({"x": np.full(2, 10**6)}))
"""
NO_MEMORY: dict[str, Exception] = {"function": MemoryError(), "torch": torch.OutOfMemoryError()}
NO_MEMORY["openvino"] = RuntimeError("Exception from src: std::bad_alloc")


@pytest.mark.parametrize("name", NO_MEMORY)
def test_failed_allocation_is_told_apart_so_that_micro_batches_are_halved(name: str, graph: Path) -> None:
    for error, told, words in ((NO_MEMORY[name], OutOfMemory, None), (RuntimeError("a bug"), RuntimeError, "a bug")):
        engine: Any = FunctionEngine(Mock(side_effect=error), ["input"])
        if name == "torch":
            module: Any = torch.nn.Linear(1, 1)
            module.forward = Mock(side_effect=error)
            engine = TorchEngine(module, CPU, ["input"], ["y"])
        elif name == "openvino":
            engine = OpenVinoEngine(graph, precision="fp32")
            engine._whole._request = SimpleNamespace(infer=Mock(side_effect=error))
        with pytest.raises(told, match=words):
            engine.run({"input": np.zeros((1, 1), np.float32)})


def test_program_that_fails_elsewhere_than_on_a_cpu_blames_no_values() -> None:
    run = {
        name: ProgramEngine(torch.nn.Linear(2, 2), torch.device(name), {"x": None}, ["y"]).run
        for name in ("cpu", "meta")  # the weights are on a CPU
    }
    with pytest.raises(OutOfRange):
        run["cpu"]({"x": np.ones((1, 3), np.float32)})
    with pytest.raises((RuntimeError, NotImplementedError)):
        run["meta"]({"x": np.ones((1, 2), np.float32)})


@pytest.mark.gpu
def test_gpu_that_computes_nothing_more_ends_the_worker_in_one_line() -> None:
    """An index outside of its table is such an error: every later call fails."""
    ended = run_python(LOST_GPU, "")
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = [line for line in ended.stderr.splitlines() if "Assertion" not in line and line.strip()]
    assert line.startswith("cuda:0 cannot compute any more: ")
    assert line.endswith("CUDA error: device-side assert triggered; TorchServe starts a new worker")


@table(
    *((f"CUDA error: {each}", 0.5, OutOfMemory) for each in ("CUBLAS_STATUS_ALLOC_FAILED when", "out of memory")),
    ("GET was unable to find an engine to execute this computation", 0.05, OutOfMemory),
    ("Unable to find a valid cuDNN algorithm to run convolution", 0.05, OutOfMemory),
    ("GET was unable to find an engine to execute this computation", 0.5, RuntimeError),
    ("a bug", 0.05, RuntimeError),
)
def test_failed_allocation_of_cuda_is_told_apart(message: str, free_share: float, error: Any, monkeypatch: Any) -> None:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(1000 * free_share), 1000))
    with pytest.raises(error), memory_errors(torch.device("cuda", 0)):
        raise RuntimeError(message)


ALLOWED = 64
V1 = {"cpu,cpuacct/pod/cpu.cfs_quota_us": "-1", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}
V1_POD = {**V1, "cpu,cpuacct/cpu.cfs_quota_us": "250000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}
POD = {"kubepods/pod1/c1/cpu.max": "max 100000", "kubepods/pod1/cpu.max": "200000 100000"}


@table(
    # A container's limit, in whole cores and one at least; none; nothing mounted.
    *(("0::/", {"cpu.max": f"{limit} 100000"}, cores) for limit, cores in (("400000", 4), ("350000", 3), ("50000", 1))),
    *(("0::/", files, ALLOWED) for files in ({"cpu.max": "max 100000"}, {})),
    # The limit of the pod; a path that is the machine's or lies outside of the namespace.
    ("0::/kubepods/pod1/c1", POD, 2),
    *((own, {"cpu.max": "300000 100000"}, 3) for own in ("0::/kubepods/pod1/c1", "0::/../../pod2")),
    # Version 1: a quota around the process's own, none, and beside an empty version 2 under another mount.
    *((f"5:cpuset:/x\n4:cpu,cpuacct:/pod{also}", V1_POD, 2) for also in ("", "\n0::/system")),
    ("4:cpu,cpuacct:/pod", V1, ALLOWED),
    ("4:cpuacct,cpu:/", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2),
)
def test_usable_cores_under_a_limit(own: str, files: Any, cores: int, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(ALLOWED)))
    root = tmp_path / "cgroup"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text(f"{own}\n")
    assert (usable_cores(root, tmp_path / "own"), available_threads(7)) == (cores, 7)
    # One process is served by several as it is by one.
    assert shares.usable_cores(root, tmp_path / "own") == [*range(cores)]
