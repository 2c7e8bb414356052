"""Tests and measurements of a GPU, in ten minutes: python -m tests.nightly.gpu_check [STEP] [--dry-run]

build -> each step in a process with a limit of time -> a line of JSON for each figure -> build/gpu.json and a table

A step that fails keeps its figures so far. `--dry-run` is a rehearsal on a processor. On a machine without the
builder's packages, the first step completes the archives in build/gpu-archives with seeded weights: `--prepare` leaves
them there without weights, some 3 MB for the machine with the GPU.
"""

import argparse
import io
import logging
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson
import psutil
import pytest
import torch
import torchvision
import transformers
import yaml
from PIL import Image, ImageFile
from safetensors.torch import save_file

from deploy.archives.tasks import task_class
from handlers.archive_files import BUILD
from handlers.engines import available_threads
from handlers.pipeline.task import decode as decode_payload
from handlers.protocol.requests import Payload
from handlers.warm_up import decode_items
from load.bench import archives, gpu, samples
from load.bench.contender import Endpoint
from load.bench.hosts import serve_one, wait_for_all
from load.bench.rounds import Bench, ratios
from load.bench.texts import CHECKPOINT, NO_CHECKPOINT, TRANSLATION
from load.generate import ClosedLoop
from tests.handlers.cpu_graphs import use_graphs
from tests.handlers.serving import started

IS_DRY = "--dry-run" in sys.argv
TEXTS, IMAGES = MODELS = {"sentence-embedding": "sentence_embedding", "resnet-152": "image_classification"}
JSON, PREPARED = Path("build/gpu.json"), Path("build/gpu-archives")
# Seconds of all steps; a processor takes longer.
TOTAL_S, SLOWER = 570.0, 10 if IS_DRY else 1
# Micro-batches of texts of random lengths; items of others, and how often these run.
SHAPES, ROWS, WARM_UPS, REPEATS = (2, (1, 3), 1, 2) if IS_DRY else (100, (1, 16, 64), 3, 50)
PROCESSES, CLIENTS, SETTLE_S = ((1, 2), 4, 0.5) if IS_DRY else ((1, 2, 4, 8), 64, 3.0)
CHANCE = np.random.default_rng(0)
Figures = Iterator[tuple[str, Any]]


def load(store: Path, name: str, cuda_graphs: str = "auto") -> Any:
    """Load an archive as a worker of the GPU does."""
    own = (yaml.safe_load((store / name / "model-config.yaml").read_text(encoding="utf-8")) or {}).get("handler", {})
    small = {"max_batch_items": 4, "cuda_graph_seconds": 5.0} if IS_DRY else {}
    return started(task_class(MODELS[name])(), store / name, {**own, "cuda_graphs": cuda_graphs, **small})


def texts(handler: Any, rows: int, length: int) -> Any:
    """Make random texts, padded to a length of ours."""
    length = handler.padded_length(length)
    arrays = {name: np.zeros((rows, length), np.int64) for name in handler.engine.input_names}
    arrays["input_ids"][:] = CHANCE.integers(0, handler.model_config.vocab_size, (rows, length))
    arrays["attention_mask"][:] = np.arange(length) < CHANCE.integers(1, length + 1, (rows, 1))
    return arrays


def time_ms(run: Callable[..., object], *arguments: Any) -> float:
    started_s = time.perf_counter()
    run(*arguments)
    return 1000 * (time.perf_counter() - started_s)


def build(store: Path) -> Figures:
    """Build the archives, with weights for PyTorch only, or complete those that a processor has prepared."""
    for name in MODELS:
        if PREPARED.is_dir():
            shutil.copytree(PREPARED / name, store / name)
            write_weights(store / name)
        else:
            example = "mobilenet-v2" if IS_DRY and name == IMAGES else name
            archives.build(Bench(store), example, store, engine="torch").rename(store / name)
        yield name, "completed" if PREPARED.is_dir() else "built"


def prepare() -> None:
    """Build archives without weights, and without the sums of files that a worker would miss."""
    for name in MODELS:
        shutil.rmtree(PREPARED / name, ignore_errors=True)
        archives.build(Bench(PREPARED), name, PREPARED, engine="torch").rename(PREPARED / name)
        for each in (BUILD, "model.pt", "checkpoint/model.safetensors"):
            (PREPARED / name / each).unlink(missing_ok=True)


def write_weights(folder: Path) -> None:
    torch.manual_seed(0)
    if folder.name == IMAGES:
        torch.save(torchvision.models.resnet152(weights=None).state_dict(), folder / "model.pt")
    else:
        checkpoint = folder / "checkpoint"
        network = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(checkpoint))
        save_file(network.state_dict(), checkpoint / "model.safetensors", {"format": "pt"})


def tests(_: Path) -> Figures:
    """Run the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/handlers"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    yield "exit code and end", [done.returncode, done.stdout.splitlines()[-3:]]
    assert done.returncode == (5 if IS_DRY else 0)


def speed(store: Path) -> Figures:
    """Time loading, micro-batches, and new and known shapes of texts: with cuDNN's attention, eagerly, on graphs."""
    for name, way in ((TEXTS, "cudnn"), *product(MODELS, ("eager", "graphs"))):
        started_s = time.monotonic()
        handler = load(store, name, "auto" if way == "graphs" else "off")
        yield f"{name}, {way}, s to load", time.monotonic() - started_s
        torch.backends.cuda.enable_cudnn_sdp(way == "cudnn")
        if name == TEXTS:
            most = np.array([handler.config.max_batch_items, handler.max_length])
            tried = [texts(handler, *CHANCE.integers(1, most + 1)) for _ in range(SHAPES)]
            handler.engine.run(texts(handler, *most))  # memory for the largest is there before anything is timed
            for kind in ("new", "known"):
                times = [time_ms(handler.engine.run, each) for each in tried]
                yield f"{name}, {way}, {kind} shapes, ms p50, p99", np.quantile(times, [0.5, 0.99]).tolist()
            with torch.profiler.profile() as profile:
                handler.engine.run(tried[0])
            found = {each.key[:60] for each in profile.key_averages() if "ttention" in each.key or "mha" in each.key}
            yield f"{name}, {way}, kernels", sorted(found)
        for rows in ROWS:
            arrays = handler.collate(decode_items(handler, [handler.sample()]) * rows)
            times = [time_ms(handler.engine.run, arrays) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
            yield f"{name}, {way}, {rows} items, ms", median(times)


def images(store: Path) -> Figures:
    """Time decoding on threads, whose rate shows where these wait for each other, and nvJPEG, whose pixels differ."""
    handler, bodies = load(store, IMAGES, "off"), samples.photographs() * (1 if IS_DRY else 50)
    counts, intervals_s = sorted({1, 4, available_threads(0)}), (sys.getswitchinterval(), 0.0005)
    for threads, interval_s, block in product(counts, intervals_s, (ImageFile.MAXBLOCK, 1 << 20)):
        sys.setswitchinterval(interval_s)
        ImageFile.MAXBLOCK = block
        with ThreadPoolExecutor(threads) as pool:
            took_s = rate_s(lambda: list(pool.map(partial(decode_payload, handler), map(Payload, bodies))))
        what = f"decoding on {threads} threads, switched every {1000 * interval_s:g} ms, blocks of {block >> 10} KiB"
        yield f"{what}, images/s", len(bodies) / took_s
    files = [torch.frombuffer(bytearray(body), dtype=torch.uint8) for body in bodies]
    decode = partial(torchvision.io.decode_jpeg, files, device=str(handler.archive.device))
    yield "nvJPEG without resizing, images/s", len(bodies) / rate_s(decode)
    pillow = np.asarray(Image.open(io.BytesIO(bodies[0]))).transpose(2, 0, 1).astype(int)
    levels = np.abs(decode()[0].cpu().numpy() - pillow)
    yield "nvJPEG, most levels from Pillow's, share over one", [int(levels.max()), float((levels > 1).mean())]


def processes(store: Path) -> Figures:
    """Time processes that share the GPU behind one port, and their memory; each has its own copy of the model."""
    for name, count in product(MODELS, PROCESSES):
        folder = store / f"{name}-{count}"
        archives.copy_with(store / name, folder.name, cuda_graph_seconds=5.0)
        inputs = samples.images() if name == IMAGES else samples.singles(samples.texts())
        before = gpu_bytes()
        words = ("--processes", str(count))
        with serve_one(folder, inputs, gpu=None if IS_DRY else 0, words=words) as server:
            wait_for_all(server, count)
            ours = Endpoint(name, server.url, inputs)
            ours.run(ClosedLoop(CLIENTS), SETTLE_S, 0.0)
            found = ours.run(ClosedLoop(CLIENTS), 2.0, 0.5)
            memory = [gpu_bytes() - before, sum(memory_of(each) for each in psutil.Process(server.pid).children())]
        title = f"{name}, {CLIENTS} clients, {count} processes"
        yield f"{title}, items/s, ms p50", [found.per_s, found.p50_ms]
        yield f"{title}, MiB of each on the GPU, and beside it", [each / count / 2**20 for each in memory]


def gpu_bytes() -> int:
    """Return the used memory of the GPU, of all processes."""
    if IS_DRY:
        return 0
    free, every = torch.cuda.mem_get_info()
    return every - free


def memory_of(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


def translation(store: Path) -> Figures:
    """Time CTranslate2, which needs CUDA 12's cuBLAS (nvidia-cublas-cu12), and generate(), greedily."""
    if not CHECKPOINT.is_dir():
        yield NO_CHECKPOINT, None
        return
    some = samples.paragraphs(4 if IS_DRY else 64)
    for engine in ("torch", "auto"):
        options: Any = {"weights": str(CHECKPOINT), "engine": engine}
        folder = archives.build(Bench(store), TRANSLATION, store / engine, **options)
        handler: Any = started(task_class(TRANSLATION)(), folder, {"precision": "auto" if IS_DRY else "fp16"})
        items = decode_items(handler, map(Payload, some))
        run = partial(handler.forward, handler.collate(items), items)
        yield f"{handler.engine.description}, texts/s", len(some) / rate_s(run)


def rate_s(run: Callable[[], Any]) -> float:
    """Return the seconds of the second run."""
    return [time_ms(run) for _ in range(2)][1] / 1000


def http(store: Path) -> Figures:
    """Compare ours over HTTP with loops in process; see load.bench.gpu."""
    archives.build = lambda _, name, *others, **more: store / name  # noqa: ARG005
    bench = Bench(store, rounds=2, seconds=1.0, ends_s=time.monotonic() + 180.0)
    for row in () if IS_DRY else gpu.measure(bench):
        medians = map(median, (ratios(row.ours, row.theirs), row.ours, row.theirs))
        yield f"{row.what}, over {row.against}: ratio, ours, theirs", list(medians)


# Each step and its limit in seconds.
STEPS = {build: 60, tests: 90, speed: 150, images: 50, processes: 150, translation: 60, http: 240}


def run_step(name: str, limit_s: float, store: str) -> dict[str, Any]:
    """Run a step in a process; return its figures, and its error if it failed."""
    dry = ["--dry-run"] if IS_DRY else []
    command = [sys.executable, "-m", "tests.nightly.gpu_check", name, "--store", store, *dry]
    with tempfile.TemporaryFile("w+b") as output, tempfile.TemporaryFile("w+b") as log:
        try:
            code: Any = subprocess.run(command, stdout=output, stderr=log, timeout=limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"over {limit_s:.0f} s"
        output.seek(0)
        log.seek(0)
        figures, lines = output.read().splitlines(), log.read().decode(errors="replace").splitlines()
    found = dict(orjson.loads(line) for line in figures if line.startswith(b'["'))
    found["log"] = [line for line in lines if "CUDA graphs" in line or "changes outputs" in line]
    return {**found, **({"failed": [code, *lines[-3:]]} if code else {})}


def main() -> int:
    """Run all steps, or one; return the exit code."""
    command = argparse.ArgumentParser(prog="python -m tests.nightly.gpu_check", description="Test and measure a GPU.")
    command.add_argument("step", nargs="?")
    command.add_argument("--dry-run", action="store_true", help="rehearse on a processor")
    command.add_argument("--prepare", action="store_true", help=f"leave archives without weights in {PREPARED}")
    command.add_argument("--store", help=argparse.SUPPRESS)
    options, report, ends_s = command.parse_args(), dict[str, Any](), time.monotonic() + SLOWER * TOTAL_S
    if options.store:
        logging.basicConfig()
        use_graphs(pytest.MonkeyPatch(), "cpu" if IS_DRY else "cuda")
        for figure in {step.__name__: step for step in STEPS}[options.step](Path(options.store)):
            print(orjson.dumps(figure).decode(), flush=True)
        return 0
    JSON.parent.mkdir(exist_ok=True)
    if options.prepare:
        prepare()
        return 0
    with tempfile.TemporaryDirectory() as store:
        for step, limit_s in STEPS.items():
            if options.step in (None, step.__name__) or step is build:
                started_s = time.monotonic()
                found = run_step(step.__name__, max(1.0, min(SLOWER * limit_s, ends_s - started_s)), store)
                took_s, word = time.monotonic() - started_s, "FAILED" if "failed" in found else "ok"
                print(f"gpu: {step.__name__} {word}, {took_s:.0f} s", flush=True)
                report[step.__name__] = found
                JSON.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    rows = [(name, *figure) for name, found in report.items() for figure in found.items()]
    print("\n".join(f"| {name} | {what} | {value} |" for name, what, value in rows))
    return int(any("failed" in found for found in report.values()))


if __name__ == "__main__":
    sys.exit(main())
