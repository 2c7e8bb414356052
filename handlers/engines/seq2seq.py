"""Turn text into text with transformers' generate(), for models and GPUs that CTranslate2 does not have.

One call of it is for a micro-batch whose items share their options.

folder -> load_model -> Generator: (B, T) ids and the arguments of generate() -> (B, U) ids

Decoding is greedy or a search with beams and never sampled, so that the same request gets the same answer, whoever it
shares a batch with.
"""

import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from handlers.engines import Arrays, Listener, Outputs, Progress, available_threads
from handlers.engines.torch import Precision, dtype_for
from handlers.errors import InvalidConfig, OutOfMemory, OutOfTime

# What an almost empty step of the decoder costs, in items, by device: a generate() of their own for a batch's shorter
# texts pays from there on. Measured on Marian in bf16 on two cores: 8 ms for a step of one item, 24 ms for one of 32.
# On a GPU a step of one item should take about as long as one of many: batches stay whole. That number is not
# measured.
_STEP_ITEMS = {"cpu": 12, "cuda": 256}
# Tokens of an answer where nobody and nothing says.
MAX_NEW_TOKENS = 256


def step_items(device: torch.device) -> int:
    """What an almost empty step of the decoder costs on a device, in items; 0 where that is not known."""
    return _STEP_ITEMS.get(device.type, 0)


class Banned(transformers.LogitsProcessor):  # type: ignore[misc]
    """Keeps single tokens out of the answer; `bad_words_ids` would go over the vocabulary four times a step."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Make the tokens impossible.

        Args:
            input_ids: (B, U) int64, what is written so far; it makes no difference.
            scores: (B, vocabulary), a copy of the logits, which is ours to change.

        Returns:
            `scores` itself, minus infinity at the tokens.
        """
        scores[:, self._ids] = -torch.inf
        return scores


class Deadline(transformers.StoppingCriteria):  # type: ignore[misc]
    """Ends an answer that takes too long, for `max_time` of generate() would give what is written so far as good."""

    def __init__(self, ends_s: float) -> None:
        self._ends_s = ends_s

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ARG002
        """Stop nothing in time.

        Args:
            input_ids: (B, U) int64, what is written so far.
            scores: it makes no difference.
            others: likewise.

        Returns:
            (B,) bool, False.

        Raises:
            OutOfTime: time is up.
        """
        if time.perf_counter() > self._ends_s:
            raise OutOfTime
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Telling(transformers.StoppingCriteria):  # type: ignore[misc]
    """Tells of greedy decoding, step by step, what was written for each item, and which has ended."""

    def __init__(self, progress: Listener, items: int, end_ids: Collection[int], max_new_tokens: int) -> None:
        self._progress = progress
        self._left = set(range(items))
        self._end_ids = end_ids
        self._max_new_tokens = max_new_tokens
        self._steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **others: Any) -> torch.Tensor:  # noqa: ARG002
        """Tell of the tokens that came last.

        Args:
            input_ids: (B, U) int64, what is written so far.
            scores: it makes no difference.
            others: likewise.

        Returns:
            (B,) bool: the items of which no more is wanted.
        """
        self._steps += 1
        stopped = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for index, token in enumerate(input_ids[:, -1].tolist()):
            if index in self._left:
                is_last = token in self._end_ids or self._steps >= self._max_new_tokens
                stopped[index] = is_over = self._progress(Progress(index, (token,), is_last))
                if is_last or is_over:
                    self._left.remove(index)
        return stopped


class Generator:
    """An engine (see `handlers.engines.Engine`) of a model with an encoder and a decoder, which generates."""

    input_names = ("input_ids", "attention_mask")

    def __init__(self, model: Any, device: torch.device, threads: int = 0, longest_run_s: float = inf) -> None:
        """Take a model over.

        Args:
            model: of transformers, on its device and in its precision; its generation config is changed to what `run`
                relies on.
            device: where the model's weights are.
            threads: how many threads PyTorch's operators have on the CPU; 0 for one on every core.
            longest_run_s: the most seconds of one `run`.
        """
        self._longest_run_s = longest_run_s
        torch.set_num_threads(available_threads(threads))
        self.model = model.eval()
        self._device = device
        self._processors = [Banned(banned)] if (banned := _prepare(model.generation_config)) else []
        self.description = f"torch {device} {str(model.dtype).removeprefix('torch.')}"

    def run(self, inputs: Arrays, arguments: Mapping[str, Any] | None = None) -> Outputs:
        """Run generate() once.

        Args:
            inputs: `input_ids` and `attention_mask`, (B, T) int64.
            arguments: further ones of generate(), for all B; without any, decoding is greedy.

        Returns:
            `sequences`, (B, U) int64, right-padded.

        Raises:
            OutOfMemory: the micro-batch does not fit.
            OutOfTime: it took longer than `longest_run_s`.
        """
        return self._generate(inputs, {"max_new_tokens": MAX_NEW_TOKENS, **(arguments or {})}, ())

    def run_progressively(
        self, inputs: Arrays, progress: Listener, arguments: Mapping[str, Any] | None = None
    ) -> Outputs:
        """Run generate() once, as `run` does, greedily; see `handlers.engines.Progressive`."""
        arguments = {"max_new_tokens": MAX_NEW_TOKENS, **(arguments or {})}
        generation = self.model.generation_config
        ends = generation.eos_token_id
        end_ids = {ends} if isinstance(ends, int) else set(ends or ())
        telling = Telling(progress, len(inputs["input_ids"]), end_ids, arguments["max_new_tokens"])
        return self._generate(inputs, arguments, (telling,))

    @torch.inference_mode()
    def _generate(
        self, inputs: Arrays, arguments: Mapping[str, Any], criteria: Sequence[transformers.StoppingCriteria]
    ) -> Outputs:
        deadline = Deadline(time.perf_counter() + self._longest_run_s)
        arguments = dict(arguments)
        if arguments.get("num_beams", 1) == 1:
            # The likeliest token stays so; normalising would go over the vocabulary for nothing.
            arguments["renormalize_logits"] = False
        try:
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in inputs.items()}
            sequences = self.model.generate(
                **tensors, **arguments, logits_processor=self._processors, stopping_criteria=[*criteria, deadline]
            )
            return {"sequences": sequences.cpu().numpy().astype(np.int64, copy=False)}
        except (torch.OutOfMemoryError, MemoryError) as error:
            # The blocks of the failed attempt must go before a smaller one is tried.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            raise OutOfMemory from error


def _prepare(generation: Any) -> list[int]:
    """Make greedy decoding of any length the default; return the single tokens that are never to be said."""
    generation.do_sample, generation.num_beams, generation.num_return_sequences = False, 1, 1
    generation.temperature = generation.top_k = generation.top_p = None
    generation.max_length = generation.max_new_tokens = None
    bad_words = generation.bad_words_ids or []
    generation.bad_words_ids = [ids for ids in bad_words if len(ids) > 1] or None
    return [ids[0] for ids in bad_words if len(ids) == 1]


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a folder.

    Args:
        folder: with the tokenizer's files.
        trust_remote_code: whether to run the Python that the folder brings.
    """
    with warnings.catch_warnings():
        # Marian's recommends a package whose result it does not use.
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")
        return transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )


def load_model(folder: Path, device: torch.device, precision: Precision, *, trust_remote_code: bool = False) -> Any:
    """Load any model that AutoModelForSeq2SeqLM knows.

    Args:
        folder: config.json, model.safetensors and generation_config.json.
        device: where the model is to run.
        precision: see `handlers.engines.torch.dtype_for`.
        trust_remote_code: whether to run the Python that the folder brings.

    Raises:
        InvalidConfig: the folder holds no such model.
    """
    try:
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            folder,
            dtype=dtype_for(device, precision),
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{folder.name}: no model for translation: {str(error).partition(chr(10))[0]}") from error
    return model.to(device)


def read_generation(folder: Path, *, trust_remote_code: bool = False) -> tuple[Any, int | None]:
    """Read what a checkpoint says of its answers, without its weights.

    Args:
        folder: config.json and, where it has one, generation_config.json.
        trust_remote_code: whether to run the Python that the folder brings.

    Returns:
        The GenerationConfig, and how many positions the decoder has.
    """
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    if (folder / "generation_config.json").is_file():
        return transformers.GenerationConfig.from_pretrained(folder, local_files_only=True), position_count(config)
    return transformers.GenerationConfig.from_model_config(config), position_count(config)


def position_count(config: Any) -> int | None:
    """How many positions the decoder of a model has; None for any number."""
    return getattr(config, "max_position_embeddings", None)
