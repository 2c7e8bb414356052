"""Loops on a GPU without a server, for load.bench.loops: torchvision, sentence-transformers, generate()."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers
from PIL import Image
from torchvision.transforms import v2

from handlers.archive_files import CHECKPOINT
from handlers.engines import available_threads
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD
from load.bench import samples

Step = Callable[[str, int], int]  # (way, batch_size) -> number of items
Run = Callable[[torch.Tensor], Any]

GPU, DTYPE = "cuda", torch.bfloat16
# The ways of a loop. `sorted` has all texts, by length, `compiled` with torch.compile and its CUDA graphs, too.
EAGER, SORTED, COMPILED, GRAPH = "eager", "sorted", "compiled", "graph"


def load_images(folder: Path) -> Step:
    """Load ResNet-152; one call decodes on all cores."""
    network = torchvision.models.resnet152(weights=None)
    network.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    network.eval().to(GPU, DTYPE, memory_format=torch.channels_last)
    graphs: dict[int, Run] = {}
    read = v2.Compose([v2.Resize(232), v2.CenterCrop(224), v2.PILToTensor()])
    pool, bodies = ThreadPoolExecutor(available_threads(0)), cycle(samples.photographs())
    mean, std = (torch.tensor(each, device=GPU).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))

    def step(way: str, batch_size: int) -> int:
        images = pool.map(lambda body: read(Image.open(io.BytesIO(body)).convert("RGB")), islice(bodies, batch_size))
        pixels = torch.stack(list(images)).to(GPU, memory_format=torch.channels_last)

        def run(pixels: torch.Tensor) -> Any:
            return network(((pixels / 255 - mean) / std).to(DTYPE)).float().softmax(1).topk(5).values

        with torch.inference_mode():
            if way == GRAPH and batch_size not in graphs:
                graphs[batch_size] = _record(run, pixels)
            (graphs[batch_size] if way == GRAPH else run)(pixels).cpu()
        return batch_size

    return step


def _record(run: Run, example: torch.Tensor) -> Run:
    """Record a CUDA graph for one shape."""
    static = example.clone()
    for _ in range(2):
        run(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(static)

    def replay(pixels: torch.Tensor) -> object:
        static.copy_(pixels)
        graph.replay()
        return found

    return replay


def load_texts(folder: Path) -> Step:
    """Load a sentence encoder."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds, only needed here

    path, every, texts = str(folder / CHECKPOINT), list(samples.texts()), cycle(samples.texts())
    eager, compiled = (SentenceTransformer(path, device=GPU, model_kwargs={"dtype": DTYPE}) for _ in range(2))
    compiled.compile(mode="reduce-overhead", dynamic=True)

    def step(way: str, batch_size: int) -> int:
        some = list(islice(texts, batch_size)) if way == EAGER else every
        (compiled if way == COMPILED else eager).encode(some, batch_size=batch_size, show_progress_bar=False)
        return len(some)

    return step


def load_translation(folder: Path) -> Step:
    """Load a Marian checkpoint; a batch ends with its longest text."""
    path, texts = folder / CHECKPOINT, cycle(samples.paragraphs(64))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=DTYPE).eval().to(GPU)

    def step(_: str, batch_size: int) -> int:
        encoded = tokenizer(list(islice(texts, batch_size)), padding=True, return_tensors="pt").to(GPU)
        with torch.inference_mode():
            ids = network.generate(**encoded, num_beams=1, do_sample=False)
        tokenizer.batch_decode(ids, skip_special_tokens=True)
        return batch_size

    return step
