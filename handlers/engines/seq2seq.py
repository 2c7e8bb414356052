"""Turn text into text with transformers' generate(), for models and GPUs that CTranslate2 does not have.

folder -> load_model -> Generator: (B, T) ids and the arguments of generate() -> (B, U) ids

One call runs a micro-batch whose items share their options. Decoding is greedy or a search with beams and never
sampled, so that a request gets the same answer in any batch.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from handlers import checkpoints
from handlers.engines import Arrays, Listener, Outputs, available_threads
from handlers.engines.torch import Precision, dtype_for, memory_errors
from handlers.errors import OutOfTime

# The cost of an almost empty step of the decoder, in items, by device: from this number on, a separate generate() for a
# batch's shorter texts is faster. Marian in bf16 on two cores takes 8 ms for a step of one item, 24 ms for one of 32. A
# GPU was not measured; a step should take about as long for one item as for many, so batches stay whole.
_STEP_ITEMS = {"cpu": 12, "cuda": 256}
MAX_NEW_TOKENS = 256  # the most tokens of an answer if neither the request nor the model states a limit


def step_items(device: torch.device) -> int:
    """Return the cost of an almost empty step of the decoder on a device, in items; 0 if it is unknown."""
    return _STEP_ITEMS.get(device.type, 0)


class TokenBan(transformers.LogitsProcessor):  # type: ignore[misc]
    """Keeps single tokens out of the answer, in 6 us for a step of 32 items; `suppress_tokens` takes 9 ms."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Set `scores`, (B, vocabulary), a copy of the logits, to minus infinity at the tokens."""
        scores[:, self._ids] = -torch.inf
        return scores


class RunWatch(transformers.StoppingCriteria):  # type: ignore[misc]
    """Reports each item of a greedy run that has ended, and ends a late run; `max_time` returns unfinished texts."""

    def __init__(self, ends_s: float, ended: Listener | None, end_ids: Collection[int], max_new_tokens: int) -> None:
        self._ends_s, self._ended, self._end_ids = ends_s, ended, end_ids
        self._steps_left = max_new_tokens
        self._reported: set[int] = set()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **others: object) -> torch.Tensor:  # noqa: ARG002
        """Report the items of `input_ids`, (B, U) int64, whose last token ends them; raise OutOfTime if time is up.

        The return value, (B,) bool, is False for all: generate() ends items by itself.
        """
        if time.perf_counter() > self._ends_s:
            raise OutOfTime
        if self._ended is not None:
            self._steps_left -= 1
            for index, token in enumerate(input_ids[:, -1].tolist()):
                if index not in self._reported and (token in self._end_ids or self._steps_left <= 0):
                    self._reported.add(index)
                    self._ended(index, {"sequences": input_ids[index : index + 1].cpu().numpy()})
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Generator:
    input_names = ("input_ids", "attention_mask")

    def __init__(self, model: Any, device: torch.device, threads: int = 0, longest_run_s: float = inf) -> None:
        """Run a model of transformers that is on its device and in its precision; changes its generation config."""
        self._longest_run_s = longest_run_s
        torch.set_num_threads(available_threads(threads))
        self.model = model.eval()
        self._device = device
        self._processors = [TokenBan(banned)] if (banned := _make_greedy(model.generation_config)) else []
        self.description = f"torch {device} {str(model.dtype).removeprefix('torch.')}"

    @torch.inference_mode()
    def run(self, inputs: Arrays, arguments: Mapping[str, Any] | None = None, ended: Listener | None = None) -> Outputs:
        """Run generate() once: `input_ids` and `attention_mask`, (B, T) int64 -> `sequences`, (B, U), right-padded.

        Without `arguments` decoding is greedy, and `ended` is called for each item that ends. OutOfTime ends a run that
        takes longer than `longest_run_s`.
        """
        arguments = {"max_new_tokens": MAX_NEW_TOKENS, **(arguments or {})}
        if arguments.get("num_beams", 1) == 1:
            # Normalising would not change the likeliest token, and would take a pass over the vocabulary.
            arguments["renormalize_logits"] = False
        ends = self.model.generation_config.eos_token_id
        end_ids = {ends} if isinstance(ends, int) else set(ends or ())
        watch = RunWatch(time.perf_counter() + self._longest_run_s, ended, end_ids, arguments["max_new_tokens"])
        with memory_errors(self._device):
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in inputs.items()}
            sequences = self.model.generate(
                **tensors, **arguments, logits_processor=self._processors, stopping_criteria=[watch]
            )
            return {"sequences": sequences.cpu().numpy().astype(np.int64, copy=False)}


def _make_greedy(generation: Any) -> list[int]:
    """Make greedy decoding of any length the default; return the single tokens that no answer may contain."""
    generation.do_sample, generation.num_beams, generation.num_return_sequences = False, 1, 1
    generation.temperature = generation.top_k = generation.top_p = None
    generation.max_length = generation.max_new_tokens = None
    bad_words = generation.bad_words_ids or []
    generation.bad_words_ids = [ids for ids in bad_words if len(ids) > 1] or None
    return [ids[0] for ids in bad_words if len(ids) == 1]


def load_model(folder: Path, device: torch.device, precision: Precision, *, trust_remote_code: bool) -> Any:
    """Load any model of AutoModelForSeq2SeqLM: config.json, model.safetensors and generation_config.json."""
    dtype = dtype_for(device, precision)
    model = checkpoints.load_strictly("AutoModelForSeq2SeqLM", folder, dtype=dtype, trust_remote_code=trust_remote_code)
    return model.to(device)
