"""Loops without a server: our decoding and engine, or a common handler's. Each function returns the step of a loop.

images        decodes and classifies a micro-batch
texts         way `padded`: tokenises each text by itself, pads it to 256 and runs torch in fp32, as TorchServe's common
              transformers handler does; `sorted`: our engine on all texts sorted by length, an upper bound for servers
translation   transformers' generate() for each text
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

from deploy.archives.tasks import load_task, task_class
from handlers.archive_files import CHECKPOINT
from handlers.batching.trial import Trial
from handlers.config import parse
from handlers.engines import available_threads, pad_array
from handlers.pipeline.task import decode
from handlers.protocol.requests import Payload
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.encoder_modules import load_encoder
from handlers.text.encoders import find_token_limit
from handlers.text.inputs import round_length
from load.bench import gpu_loops, samples
from load.results import Latencies

Step = Callable[[str, int], int]  # (way, batch_size) -> number of items that it has computed

PADDED_LENGTH = 256  # tokens of the common transformers handler's padding: MiniLM's limit
MAX_NEW_TOKENS = 256  # tokens of a translation: more than any needs
TRIAL_ITEMS = 16  # items of a worker's trial: a full batch of images


def load_images(folder: Path) -> Step:
    task = _task(folder)
    pool, bodies = ThreadPoolExecutor(available_threads(task.config.decode_threads)), cycle(samples.photographs())

    def step(_: str, batch_size: int) -> int:
        batch = list(map(Payload, islice(bodies, batch_size)))
        # The handler decodes a micro-batch of one without another thread, too.
        items = (pool.map if batch_size > 1 else map)(partial(decode, task), batch)
        task.engine.run(task.collate(list(items)))
        return batch_size

    return step


def load_texts(folder: Path) -> Step:
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
        """Tokenise and embed all texts, so that short and long ones have equal weight."""
        rows = sorted(tokenizer(list(samples.texts()), truncation=True, max_length=limit)["input_ids"], key=len)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            length = round_length(len(batch[-1]), limit)
            ids = pad_array(batch, length, tokenizer.pad_token_id)
            mask = (np.arange(length) < np.array([[len(row)] for row in batch])).astype(np.int64)
            arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            engine.run({name: arrays[name] for name in engine.input_names})
        return len(rows)

    return lambda way, batch_size: padded_step(batch_size) if way == "padded" else sorted_step(batch_size)


def load_translation(folder: Path) -> Step:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    some = samples.paragraphs(len(samples.LENGTHS))  # one text of each length, since fewer would be another mix
    options = {"num_beams": 1, "do_sample": False, "max_length": None, "max_new_tokens": MAX_NEW_TOKENS}

    def step(*_: object) -> int:
        for text in some:
            with torch.inference_mode():
                ids = network.generate(**tokenizer(text, return_tensors="pt"), **options)
            tokenizer.decode(ids[0], skip_special_tokens=True)
        return len(some)

    return step


def _task(folder: Path) -> Any:
    """Load the task of an unpacked archive, with the engine that a worker's trial chooses."""
    manifest = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_text(encoding="utf-8"))
    kind = str(manifest["model"]["handler"]).removesuffix(".py")
    settings = yaml.safe_load((folder / "model-config.yaml").read_text(encoding="utf-8"))
    task = load_task(kind, folder, parse(task_class(kind).config_class, settings.get("handler")))
    task.engine = Trial(task, TRIAL_ITEMS).choose().arrangement.whole
    return task


LOOPS: dict[str, Callable[[Path], Step]] = {
    "images": load_images,
    "texts": load_texts,
    "translation": load_translation,
    "resnet-152 on a GPU": gpu_loops.load_images,
    "sentence-embedding on a GPU": gpu_loops.load_texts,
    "translation on a GPU": gpu_loops.load_translation,
}


def repeat(step: Callable[[], int], duration_s: float, warm_up_s: float) -> tuple[float, float, float]:
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
    latencies = Latencies(times_s)
    return items / sum(times_s), latencies.percentile_ms(50), latencies.percentile_ms(99)
