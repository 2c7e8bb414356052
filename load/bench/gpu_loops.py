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

GPU = "cuda"
# The way of a loop -> its precision. `compiled` is torch.compile's, with CUDA graphs; for texts, all of them, sorted.
COMPILED, GRAPH = "compiled", "graph"
DTYPES = {"bf16": torch.bfloat16, COMPILED: torch.bfloat16, GRAPH: torch.bfloat16, "fp32": torch.float32}
# The ways of a loop, by the kind of its items.
IMAGE_WAYS, TEXT_WAYS, TRANSLATION_WAYS = tuple(DTYPES), ("bf16", COMPILED, "fp32"), ("bf16", "fp32")


def load_images(folder: Path) -> Any:
    """Load ResNet-152; one call decodes on all cores."""
    state = torch.load(folder / "model.pt", weights_only=True)
    networks = {}
    for way, dtype in DTYPES.items():
        network = torchvision.models.resnet152(weights=None)
        network.load_state_dict(state)
        networks[way] = network.eval().to(GPU, dtype, memory_format=torch.channels_last)
    graphs: dict[int, Any] = {}
    networks[COMPILED] = torch.compile(networks[COMPILED], mode="reduce-overhead", dynamic=False)
    read = v2.Compose([v2.Resize(232), v2.CenterCrop(224), v2.PILToTensor()])
    pool, bodies = ThreadPoolExecutor(available_threads(0)), cycle(samples.photographs())
    mean, std = (torch.tensor(each, device=GPU).view(3, 1, 1) for each in (IMAGENET_MEAN, IMAGENET_STD))

    def step(way: str, batch_size: int) -> int:
        images = pool.map(lambda body: read(Image.open(io.BytesIO(body)).convert("RGB")), islice(bodies, batch_size))
        pixels = torch.stack(list(images)).to(GPU, memory_format=torch.channels_last)

        def run(pixels: torch.Tensor) -> Any:
            return networks[way](((pixels / 255 - mean) / std).to(DTYPES[way])).float().softmax(1).topk(5).values

        with torch.inference_mode():
            if way == GRAPH and batch_size not in graphs:
                graphs[batch_size] = _record(run, pixels)
            (graphs[batch_size] if way == GRAPH else run)(pixels).cpu()
        return batch_size

    return step


def _record(run: Callable[[torch.Tensor], Any], example: torch.Tensor) -> Any:
    """Record a CUDA graph for one shape."""
    static = example.clone()
    for _ in range(2):
        run(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(static)

    def replay(pixels: torch.Tensor) -> Any:
        static.copy_(pixels)
        graph.replay()
        return found

    return replay


def load_texts(folder: Path) -> Any:
    """Load a sentence encoder."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds, only needed here

    path, every, texts = str(folder / CHECKPOINT), list(samples.texts()), cycle(samples.texts())
    models = {way: SentenceTransformer(path, device=GPU, model_kwargs={"dtype": DTYPES[way]}) for way in TEXT_WAYS}
    models[COMPILED].compile(mode="reduce-overhead", dynamic=True)

    def step(way: str, batch_size: int) -> int:
        some = every if way == COMPILED else list(islice(texts, batch_size))
        models[way].encode(some, batch_size=batch_size, show_progress_bar=False)
        return len(some)

    return step


def load_translation(folder: Path) -> Any:
    """Load a Marian checkpoint; a batch ends with its longest text."""
    path, texts = folder / CHECKPOINT, cycle(samples.paragraphs(64))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    of: Any = transformers.AutoModelForSeq2SeqLM
    models = {way: of.from_pretrained(path, dtype=DTYPES[way]).eval().to(GPU) for way in TRANSLATION_WAYS}

    def step(way: str, batch_size: int) -> int:
        encoded = tokenizer(list(islice(texts, batch_size)), padding=True, return_tensors="pt").to(GPU)
        with torch.inference_mode():
            ids = models[way].generate(**encoded, num_beams=1, do_sample=False)
        tokenizer.batch_decode(ids, skip_special_tokens=True)
        return batch_size

    return step
