"""CTranslate2 turns texts into texts: a converted model, in int8 on a CPU, with a stream for each share of the cores.

    folder -> CTranslate2Engine: (B, T) ids and arguments of generate() -> (B, U) ids
    a greedy run -> its callback, token by token -> Listener: an item that has ended, and its ids

Decoding is greedy or a search with beams and never sampled, so that a request gets the same answer in any batch. A
sentence that has ended leaves the run at once; the others go on without it. All streams share one model's memory.
"""

import ctypes
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from handlers.engines import Arrangement, Arrays, Listener, Outputs, available_threads, pad_array, stream_counts
from handlers.engines.decoding import Decoding, starts_with_end
from handlers.errors import InvalidConfig, OutOfMemory, OutOfTime

CONVERTED = "ctranslate2"  # the folder of an archive that contains a converted model
# CTranslate2's names of the precisions that other engines have too; it has further ones.
COMPUTE_TYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# The key of a converted model's config.json that the builder sets if its search with beams differs from transformers'.
GREEDY_ONLY = "greedy_only"
# CTranslate2 opens it by this name at its first product on a GPU, unless it is loaded. PyTorch has that of CUDA 13.
CUBLAS, CUBLAS_PACKAGE = "libcublas.so.12", "nvidia-cublas-cu12"
ALLOCATION_FAILURES = ("out of memory", "bad_alloc", "failed to allocate")

# The cost of an almost empty step of the decoder on a CPU, in items. Marian in int8 on one core takes 5.7 ms for a step
# and 0.33 ms for each item.
STEP_ITEMS = 16
MAX_NEW_TOKENS = 256  # the most tokens of an answer if neither the request nor the model states a limit
# Seconds between two checks of a search with beams, which takes tenths of a second and has no callback.
_POLL_S = 0.002


def device_name(device: Any) -> str | None:
    """Return CTranslate2's name of a worker's device, "cpu" or "cuda"; None if it cannot use the device."""
    if device.type == "cpu":
        return "cpu"
    return "cuda" if device.type == "cuda" and ctranslate2.get_cuda_device_count() > 0 else None


def _load_cublas() -> None:
    """Load the library of LD_LIBRARY_PATH, or else of its package."""
    for name in (CUBLAS, *(f"{folder}/nvidia/cublas/lib/{CUBLAS}" for folder in sys.path)):
        with suppress(OSError):
            ctypes.CDLL(name)
            return
    raise InvalidConfig(
        f"engine: CTranslate2 needs {CUBLAS} on a GPU, which is not found; build the archive with --engine torch, "
        f"install {CUBLAS_PACKAGE}, or name the folder of CUDA 12's cuBLAS in LD_LIBRARY_PATH"
    )


def compute_type(device: str, precision: str) -> str:
    """Return CTranslate2's name of a precision; `auto` is int8 on "cpu", and on "cuda" bf16 or else fp16."""
    known = ctranslate2.get_supported_compute_types(device)
    if precision == "auto":
        wanted = ("int8",) if device == "cpu" else ("bfloat16", "float16")
        return next((name for name in wanted if name in known), "float32")
    name = COMPUTE_TYPES.get(precision, precision)
    if name not in known:
        raise InvalidConfig(f"precision: this processor has no {precision} in CTranslate2; use one of {_join(known)}")
    return name


def _join(known: Any) -> str:
    back = {name: precision for precision, name in COMPUTE_TYPES.items()}
    return ", ".join(sorted({back.get(name, name) for name in known}))


class Stream:
    """One stream of an engine, or several that share each micro-batch."""

    input_names = ("input_ids", "attention_mask")
    description: str

    def __init__(self, whole: "CTranslate2Engine", streams: int = 1) -> None:
        self._whole, self._streams = whole, streams
        self.description = whole.description

    def run(
        self, inputs: Arrays, arguments: Mapping[str, object] | None = None, ended: Listener | None = None
    ) -> Outputs:
        """See `seq2seq.Generator.run`; without beams, `max_new_tokens` may have a number for each item."""
        return self._whole.translate(inputs, arguments, self._streams, ended)


class CTranslate2Engine(Stream):
    """All streams of a converted model, which is Divisible."""

    # One text is no faster on two cores than on one: each step multiplies one row, and threads wait for each other at
    # every step.
    deals_out = True

    def __init__(
        self,
        folder: Path,
        generation: Any,
        *,
        pad_id: int,
        device: Any,
        precision: str = "auto",
        threads: int = 0,
        streams: int = 1,
        longest_run_s: float = inf,
    ) -> None:
        """Load a converted model; `threads` are those of all streams together, 0 means one on every core."""
        where = device_name(device)
        if where is None:
            raise InvalidConfig("engine: CTranslate2 cannot use this GPU; build the archive with --engine torch")
        if where == "cuda":
            _load_cublas()
        arithmetic = compute_type(where, precision)
        self._load_again = partial(
            CTranslate2Engine,
            folder,
            generation,
            pad_id=pad_id,
            device=device,
            precision=precision,
            threads=threads,
            longest_run_s=longest_run_s,
        )
        self._threads = available_threads(threads) if where == "cpu" else 1
        streams = min(streams, self._threads)
        others = [count for count in stream_counts(self._threads) if count != streams]
        self.stream_counts: Sequence[int] = [streams, *others]
        try:
            self._translator = ctranslate2.Translator(
                str(folder),
                where,
                device_index=device.index or 0,
                compute_type=arithmetic,
                inter_threads=streams,
                intra_threads=self._threads // streams,
            )
            self._vocabulary = read_vocabulary(folder)
            converted = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (RuntimeError, OSError, ValueError) as error:
            raise InvalidConfig(f"{folder.name}: not a converted model: {str(error).partition(chr(10))[0]}") from error
        self._ids = {token: number for number, token in enumerate(self._vocabulary)}
        has_start = converted.get("decoder_start_token") is not None
        self.starts_with_end = starts_with_end(generation)
        self.is_greedy_only = bool(converted.get(GREEDY_ONLY))
        self.vocabulary_size = len(self._vocabulary)
        self._decoding = Decoding.read(generation, self._vocabulary, has_start=has_start)
        self._pad_id, self._longest_run_s = pad_id, longest_run_s
        self.description = f"ctranslate2 {where} {_join([arithmetic])}"
        super().__init__(self, streams)

    def divide(self, streams: int) -> Arrangement:
        streams = min(streams, self._threads)  # another number of streams needs the model to be loaded again
        whole = self if streams == self._streams else self._load_again(streams=streams)
        return Arrangement(whole, [Stream(whole) for _ in range(streams)] if streams > 1 else ())

    def translate(self, inputs: Arrays, sent: Mapping[str, Any] | None, parts: int, ended: Listener | None) -> Outputs:
        """Translate a micro-batch in `parts` side by side; see `Stream.run`."""
        arguments = sent or {}
        lengths = inputs["attention_mask"].sum(axis=1)
        sources = [
            [self._vocabulary[number] for number in row[:length].tolist()]
            for row, length in zip(inputs["input_ids"], lengths.tolist(), strict=True)
        ]
        wanted = arguments.get("max_new_tokens", MAX_NEW_TOKENS)
        limits = [*map(self._decoding.limit, [wanted] * len(sources) if isinstance(wanted, int) else wanted)]
        prefix = [self._vocabulary[number] for number in self._decoding.prefix(arguments)]
        options = self._decoding.options(arguments, max(limits))
        ends_s = time.perf_counter() + self._longest_run_s
        run = _Run(limits, ends_s, ended)
        try:
            # Texts are sorted by length: every part has some of each length, so that parts end at about the same time.
            running: list[tuple[int, Any]] = []
            for part in range(min(parts, len(sources))):
                indices = range(part, len(sources), parts)
                callback = {} if options["beam_size"] > 1 else {"callback": partial(run.step, indices)}
                some = [sources[index] for index in indices]
                starts = [prefix] * len(some) if prefix else None
                results = self._translator.translate_batch(some, starts, asynchronous=True, **options, **callback)
                running += zip(indices, results, strict=True)
            tokens: list[list[int]] = [[] for _ in sources]
            for index, result in running:
                while options["beam_size"] > 1 and not result.done():
                    if time.perf_counter() > ends_s:
                        raise OutOfTime
                    time.sleep(_POLL_S)
                (hypothesis,) = result.result().hypotheses
                tokens[index] = [self._ids[token] for token in hypothesis]
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in ALLOCATION_FAILURES):
                raise OutOfMemory from error
            raise
        if run.error is not None:
            raise run.error
        return {"sequences": pad_array(tokens, max(map(len, tokens), default=0), self._pad_id)}


class _Run:
    """Watches a greedy run step by step: reports items that have ended, and ends the run when its time is up."""

    def __init__(self, limits: Sequence[int], ends_s: float, ended: Listener | None) -> None:
        self._limits, self._ends_s, self._ended = limits, ends_s, ended
        self._tokens: list[list[int]] = [[] for _ in limits]
        self.error: Exception | None = None  # that ended the run early: OutOfTime, or an error of the listener
        self._lock = threading.Lock()

    def step(self, indices: Sequence[int], result: Any) -> bool:
        """Note a token of the item at `indices[result.batch_id]`, on CTranslate2's thread; True ends its sequence."""
        if self.error is None and time.perf_counter() > self._ends_s:
            self.error = OutOfTime()
        if self.error is not None:
            return True
        index = indices[result.batch_id]
        is_last = bool(result.is_last or result.step + 1 >= self._limits[index])
        if self._ended is None:
            return is_last
        self._tokens[index].append(result.token_id)
        if is_last:
            try:
                with self._lock:
                    self._ended(index, {"sequences": np.array([self._tokens[index]], np.int64)})
            except Exception as error:
                # It must not cross CTranslate2's own code, whose thread this is.
                self.error = error
        return is_last


def read_vocabulary(folder: Path) -> list[str]:
    """Read the tokens of a converted model by their ids, which equal the tokenizer's: the builder checks this."""
    tokens: list[str] = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    return tokens
