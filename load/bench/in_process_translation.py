"""Translates without a server: transformers' own generate(), called for each text by itself.

python -m load.bench.in_process_translation FOLDER     one JSON object a line
    -> {"engine": "transformers generate() cpu"}                    loaded
    <- {"precision": "fp32", "duration_s": 8}                       on stdin, any number of times
    -> {"throughput_per_s": 2.9, "answers": ["...", ...]}           texts per second; one answer per text
"""

import sys
import time
from pathlib import Path

import torch
import transformers

from handlers.engines import available_threads
from handlers.engines.torch import DTYPES
from load.bench.orders import answer_orders
from load.bench.translation import TUNING, sentences


class OneByOne:
    """Translates as a handler does that loops over its requests."""

    def __init__(self, folder: Path) -> None:
        """Load the model from its folder."""
        torch.set_num_threads(available_threads(0))
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self._models = {
            name: transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=DTYPES[name]).eval()
            for name in ("fp32",)
        }

    def measure(self, precision: str, duration_s: float) -> dict[str, object]:
        """Translate all sentences, then again until the time is over.

        Args:
            precision: "fp32".
            duration_s: least length of the measurement.

        Returns:
            `throughput_per_s`: texts per second; `answers`: one for each sentence.
        """
        answers: list[str] = []
        times_s: list[float] = []
        while len(answers) < len(sentences()) or sum(times_s) < duration_s:
            for text in sentences():
                started_s = time.perf_counter()
                answers.append(self._translate(text, precision))
                times_s.append(time.perf_counter() - started_s)
        return {"throughput_per_s": len(times_s) / sum(times_s), "answers": answers[: len(sentences())]}

    def _translate(self, text: str, precision: str) -> str:
        inputs = self._tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            ids = self._models[precision].generate(
                **inputs, num_beams=1, do_sample=False, max_length=None, max_new_tokens=TUNING.max_new_tokens
            )
        return str(self._tokenizer.decode(ids[0], skip_special_tokens=True))


def main(folder: str) -> None:
    """Load the archive in `folder`, then measure what is ordered."""
    loop = OneByOne(Path(folder))
    answer_orders("transformers generate() cpu", loop.measure)


if __name__ == "__main__":
    main(sys.argv[1])
