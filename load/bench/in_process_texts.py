"""Embeds sentences without a server, in the ways that ours is compared with.

python -m load.bench.in_process_texts FOLDER     one JSON object a line
    -> {"engine": "openvino cpu bf16"}                                  loaded
    <- {"way": "sorted", "batch_size": 32, "duration_s": 8}             on stdin, any number of times; "precision":
                                                                        "int8" for another one than `auto`
    -> {"throughput_per_s": 610.2, "p50_s": 0.05}                       texts per second; median of a micro-batch

Ways:
    padded      does as TorchServe's common transformers handler: tokenises each text alone, pads it to 256,
                and runs torch in fp32
    arrival     runs our engine on texts in their order of arrival, tokenised together and padded to the longest
    sorted      runs our engine on texts that are all known beforehand and sorted: no server could do better
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from handlers.archive_files import CHECKPOINT, GRAPH
from handlers.engines import Outputs, available_threads
from handlers.engines.openvino import OpenVinoEngine
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.encoders import Encoder, load_encoder, token_limit
from handlers.text.inputs import padded, rounded_length
from load.bench.orders import answer_orders
from load.bench.sentences import texts


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what the ways have in common."""

    # Tokens that the common handler pads to, and that a model takes whose folder does not say: MiniLM's own limit.
    padded_length: int = 256
    # Seconds before the first micro-batch that counts, chosen: the engine allocates anew for each new length.
    warm_up_s: float = 2.0


TUNING = Tuning()


class Loop:
    """Runs one model in three ways."""

    def __init__(self, folder: Path) -> None:
        """Load our engine; others when they are first asked for.

        Args:
            folder: an archive of sentence_embedding, unpacked.
        """
        checkpoint = folder / CHECKPOINT
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        self._limit = token_limit(checkpoint) or TUNING.padded_length
        self._load: Callable[..., OpenVinoEngine] = partial(OpenVinoEngine, folder / GRAPH)
        self.engine = self._load()
        self._engines: dict[str | None, OpenVinoEngine] = {None: self.engine}
        self._chosen = self.engine
        torch.set_num_threads(available_threads(0))
        self._checkpoint = checkpoint
        self._texts = texts()

    def measure(self, way: str, batch_size: int, duration_s: float, precision: str | None = None) -> dict[str, float]:
        """Run one micro-batch after another.

        Args:
            way: "padded", "arrival" or "sorted".
            batch_size: most texts of a micro-batch.
            duration_s: least length of the measurement.
            precision: the arithmetic of our engine; None for `auto`.

        Returns:
            `throughput_per_s`: texts per second; `p50_s`: median time of a micro-batch.
        """
        ways: dict[str, Callable[[int], Iterator[int]]] = {
            "padded": self._padded,
            "arrival": self._arrival,
            "sorted": self._sorted,
        }
        self._chosen = self._engine(precision)
        batches = ways[way](batch_size)
        self._run(batches, TUNING.warm_up_s)
        sizes, times_s = self._run(batches, duration_s)
        return {"throughput_per_s": sum(sizes) / sum(times_s), "p50_s": median(times_s)}

    def vectors(self, precision: str, batch: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, each alone and so without padding: (N, D), in their order.

        Args:
            precision: the arithmetic.
            batch: the texts.
        """
        self._chosen = self._engine(precision)
        rows = self._tokens(list(batch))
        return np.concatenate([next(iter(self._forward([row], len(row)).values())) for row in rows])

    def _engine(self, precision: str | None) -> OpenVinoEngine:
        if precision not in self._engines:
            self._engines[precision] = self._load(precision=precision)
        return self._engines[precision]

    @cached_property
    def _torch(self) -> Encoder:
        return load_encoder(SentenceEmbeddingHandler.head, self._checkpoint)

    @staticmethod
    def _run(batches: Iterator[int], duration_s: float) -> tuple[list[int], list[float]]:
        sizes: list[int] = []
        times_s: list[float] = []
        while sum(times_s) < duration_s:
            started_s = time.perf_counter()
            sizes.append(next(batches))
            times_s.append(time.perf_counter() - started_s)
        return sizes, times_s

    def _padded(self, batch_size: int) -> Iterator[int]:
        endless = cycle(self._texts)
        while True:
            encodings = [
                self._tokenizer(
                    text, padding="max_length", truncation=True, max_length=TUNING.padded_length, return_tensors="pt"
                )
                for text in islice(endless, batch_size)
            ]
            inputs = {name: torch.cat([e[name] for e in encodings]) for name in self._torch.input_names}
            with torch.inference_mode():
                self._torch(**inputs)
            yield batch_size

    def _arrival(self, batch_size: int) -> Iterator[int]:
        endless = cycle(self._texts)
        while True:
            rows = self._tokens(list(islice(endless, batch_size)))
            self._forward(rows, max(map(len, rows)))
            yield batch_size

    def _sorted(self, batch_size: int) -> Iterator[int]:
        """Count the tokenising of everything in the first micro-batch's time: it must be done, however early."""
        while True:
            rows = sorted(self._tokens(self._texts), key=len)
            for start in range(0, len(rows), batch_size):
                batch = rows[start : start + batch_size]
                self._forward(batch, rounded_length(len(batch[-1]), self._limit))
                yield len(batch)

    def _tokens(self, batch: list[str]) -> list[list[int]]:
        encodings = self._tokenizer(batch, truncation=True, max_length=self._limit, return_attention_mask=False)
        ids: list[list[int]] = encodings["input_ids"]
        return ids

    def _forward(self, rows: list[list[int]], length: int) -> Outputs:
        lengths = np.array([len(row) for row in rows])
        arrays = {
            "input_ids": padded(rows, length, self._tokenizer.pad_token_id),
            "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
            "token_type_ids": np.zeros((len(rows), length), np.int64),
        }
        return self._chosen.run({name: arrays[name] for name in self._chosen.input_names})


def main(folder: str) -> None:
    """Load the archive in `folder`, then measure what is ordered."""
    loop = Loop(Path(folder))
    answer_orders(loop.engine.description, loop.measure)


if __name__ == "__main__":
    main(sys.argv[1])
