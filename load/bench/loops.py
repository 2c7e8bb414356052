"""Loops without a server: the same decoding and engine, or what a common handler does. Each returns its step.

images        decodes and classifies a micro-batch
texts         way `padded`: tokenises each text alone, pads it to 256 and runs torch in fp32, as TorchServe's common
              transformers handler does; `sorted`: our engine on texts that are all known beforehand and sorted by
              length, which no server could do better
translation   transformers' generate() for each text by itself
reranking     sentence-transformers' CrossEncoder.predict of a query with each of its documents
vision        decodes, detects or segments, and answers a micro-batch, by the task's own hooks
pipeline      transformers' pipeline of the same, called once an image
"""

import io
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import transformers
import yaml
from PIL import Image

from deploy.build.tasks import load_task, task_class
from handlers.archive_files import CHECKPOINT
from handlers.batching.trial import Trial
from handlers.config import parse
from handlers.engines import available_threads, padded
from handlers.protocol.requests import Payload
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.encoders import find_token_limit, load_encoder
from handlers.text.inputs import round_length
from load.bench import samples

# (way, batch_size) -> number of items, having done some of the work.
Step = Callable[[str, int], int]

PADDED_LENGTH = 256  # tokens that the common transformers handler pads to: MiniLM's own limit
MAX_NEW_TOKENS = 256  # tokens of a translation: more than any needs
# Items that a worker's trial is made with: a full batch of images.
TRIED = 16


def images(folder: Path) -> Step:
    """Load an archive of image_classification, unpacked."""
    task = _task(folder)
    pool, bodies = ThreadPoolExecutor(available_threads(task.config.decode_threads)), cycle(samples.photographs())

    def step(_: str, batch_size: int) -> int:
        batch = list(map(Payload, islice(bodies, batch_size)))
        # A micro-batch of one gains nothing from another thread; the handler has it so too.
        seen = pool.map(task.decode, batch) if batch_size > 1 else map(task.decode, batch)
        task.engine.run(task.collate(list(seen)))
        return batch_size

    return step


def texts(folder: Path) -> Step:
    """Load an archive of sentence_embedding, unpacked."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / CHECKPOINT)
    limit = find_token_limit(folder / CHECKPOINT) or PADDED_LENGTH
    network = load_encoder(SentenceEmbeddingHandler.head, folder / CHECKPOINT)
    engine, endless = _task(folder).engine, cycle(samples.texts())

    def padded_step(batch_size: int) -> int:
        options = {"padding": "max_length", "truncation": True, "max_length": PADDED_LENGTH, "return_tensors": "pt"}
        encodings = [tokenizer(text, **options) for text in islice(endless, batch_size)]
        with torch.inference_mode():
            network(**{name: torch.cat([each[name] for each in encodings]) for name in network.input_names})
        return batch_size

    def sorted_step(batch_size: int) -> int:
        """Embed all texts, so that short and long ones count alike; tokenising is part of it, however early."""
        rows = sorted(tokenizer(list(samples.texts()), truncation=True, max_length=limit)["input_ids"], key=len)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            length = round_length(len(batch[-1]), limit)
            ids = padded(batch, length, tokenizer.pad_token_id)
            mask = (np.arange(length) < np.array([[len(row)] for row in batch])).astype(np.int64)
            arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            engine.run({name: arrays[name] for name in engine.input_names})
        return len(rows)

    return lambda way, batch_size: padded_step(batch_size) if way == "padded" else sorted_step(batch_size)


def translation(folder: Path) -> Step:
    """Load a Marian checkpoint."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    # As many as have every length once: a part of them would be another mix.
    some = samples.paragraphs(len(samples.LENGTHS))
    options: dict[str, Any] = {"num_beams": 1, "do_sample": False, "max_length": None, "max_new_tokens": MAX_NEW_TOKENS}

    def step(*_: object) -> int:
        for text in some:
            with torch.inference_mode():
                ids = network.generate(**tokenizer(text, return_tensors="pt"), **options)
            tokenizer.decode(ids[0], skip_special_tokens=True)
        return len(some)

    return step


def reranking(folder: Path) -> Step:
    """Load a cross-encoder's checkpoint."""
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds, and only here

    network, endless = CrossEncoder(str(folder), device="cpu"), cycle(samples.rankings())

    def step(*_: object) -> int:
        query, documents = next(endless)
        network.predict([(query, document) for document in documents])
        return len(documents)

    return step


def vision(folder: Path) -> Step:
    """Load an archive of a task on images, unpacked."""
    task = _task(folder)
    pool, bodies = ThreadPoolExecutor(available_threads(0)), cycle(samples.photographs())

    def step(_: str, batch_size: int) -> int:
        items = list(pool.map(task.decode, map(Payload, islice(bodies, batch_size))))
        task.split(task.engine.run(task.collate(items)), items)
        return batch_size

    return step


def pipeline(folder: Path) -> Step:
    """Load the checkpoint of such an archive."""
    network: Any = transformers.pipeline(_kind(folder).replace("_", "-"), model=str(folder / CHECKPOINT))
    pictures = cycle([Image.open(io.BytesIO(body)).convert("RGB") for body in samples.photographs()])

    def step(*_: object) -> int:
        network(next(pictures))
        return 1

    return step


def _task(folder: Path) -> Any:
    """Load the task of an unpacked archive, on the engine that a worker's trial chooses."""
    kind = _kind(folder)
    settings = yaml.safe_load((folder / "model-config.yaml").read_text(encoding="utf-8"))
    task = load_task(kind, folder, parse(task_class(kind).config_class, settings.get("handler")))
    task.engine = Trial(task, TRIED).choose().arrangement.whole
    return task


def _kind(folder: Path) -> str:
    """Read which task an unpacked archive has."""
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
    return str(manifest["model"]["handler"]).removesuffix(".py")


LOOPS: dict[str, Callable[[Path], Step]] = {
    "images": images,
    "texts": texts,
    "translation": translation,
    "reranking": reranking,
    "vision": vision,
    "pipeline": pipeline,
}


def repeated(step: Callable[[], int], duration_s: float, warm_up_s: float) -> tuple[float, float, float]:
    """Repeat a step after a warm-up; return items per second, and the step's p50 and p99 in ms."""
    torch.set_num_threads(available_threads(0))
    opens_s = time.perf_counter() + warm_up_s
    while time.perf_counter() < opens_s:
        step()
    items, times_s = 0, list[float]()
    while sum(times_s) < duration_s:
        started_s = time.perf_counter()
        items += step()
        times_s.append(time.perf_counter() - started_s)
    p99_s = sorted(times_s)[int(0.99 * len(times_s))]
    return items / sum(times_s), 1e3 * median(times_s), 1e3 * p99_s
