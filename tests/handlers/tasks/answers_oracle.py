"""The oracle of question answering: every answer by its definition, and the best of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from handlers.archive_files import CHECKPOINT

# Tokens of a window, and of its overlap: short windows keep the tests quick.
WINDOW, STRIDE = 96, 32


class Oracle:
    """transformers 5 has no question-answering pipeline: its definition, one window, start and end at a time."""

    def __init__(self, archive: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(archive / CHECKPOINT)
        network = transformers.AutoModelForQuestionAnswering
        self.network = network.from_pretrained(archive / CHECKPOINT, dtype=torch.float32).eval()

    def answers(
        self, question: str, context: str, max_tokens: int = 15, window: int = WINDOW, stride: int = STRIDE
    ) -> dict[tuple[int, int], float]:
        """Place -> score of every answer, widened to words, that is allowed at all."""
        encoded = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=window,
            stride=stride,
            return_overflowing_tokens=True,
        )
        whole = self.tokenizer(question, context).encodings[0]
        found: dict[tuple[int, int], float] = {}
        for index, encoding in enumerate(encoded.encodings):
            inputs = {name: torch.tensor([encoded[name][index]]) for name in self.tokenizer.model_input_names}
            with torch.inference_mode():
                result = self.network(**inputs)
            places = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
            if index == 0:
                begin, step = places[0], len(places) - stride
            else:
                begin += step
            # Probability is shared among the context's tokens and the first one, which means "no answer".
            starts, ends = (
                logits[0][[0, *places]].double().softmax(0)[1:].tolist()
                for logits in (result.start_logits, result.end_logits)
            )
            for i, start in enumerate(starts):
                for j, end in list(enumerate(ends))[i : i + max_tokens]:
                    # A window may begin or end within a word: words are those of the whole context.
                    first, last = (whole.token_to_word(begin + token) for token in (i, j))
                    place = (whole.word_to_chars(first, 1)[0], whole.word_to_chars(last, 1)[1])
                    found[place] = max(found.get(place, 0.0), start * end)
        return found


def assert_best(answer: dict[str, Any], context: str, expected: dict[tuple[int, int], float], tolerance: float) -> None:
    """The answer is its place's text, its score the oracle's for that place, and none is better."""
    place = (answer["start"], answer["end"])
    assert set(answer) == {"answer", "score", "start", "end"}
    assert answer["answer"] == context[answer["start"] : answer["end"]]
    assert answer["score"] == pytest.approx(expected[place], abs=tolerance)
    assert answer["score"] == pytest.approx(max(expected.values()), abs=tolerance)
