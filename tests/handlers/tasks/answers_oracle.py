"""The oracle of question answering: transformers' own choice of spans, and the sums of equal answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.pipelines.document_question_answering import select_starts_ends

from handlers.archive_files import CHECKPOINT

# Tokens of a window, and of its overlap: short windows keep the tests quick.
WINDOW, STRIDE = 96, 32


class Oracle:
    """The question-answering pipeline of transformers 4, with what 5 has left of it."""

    def __init__(self, archive: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(archive / CHECKPOINT)
        network = transformers.AutoModelForQuestionAnswering
        self.network = network.from_pretrained(archive / CHECKPOINT, dtype=torch.float32).eval()

    def answers(
        self, question: str, context: str, top_k: int = 1, *, is_aligned: bool = True, window: int = WINDOW
    ) -> list[dict[str, Any]]:
        """The best answers; one text, in any case, is one answer, with the scores of its spans in all windows."""
        encoded = self.tokenizer(
            question,
            context,
            truncation="only_second",
            max_length=window,
            stride=STRIDE,
            return_overflowing_tokens=True,
        )
        whole = self.tokenizer(question, context).encodings[0]
        found: list[dict[str, Any]] = []
        for index, encoding in enumerate(encoded.encodings):
            inputs = {name: torch.tensor([encoded[name][index]]) for name in self.tokenizer.model_input_names}
            with torch.inference_mode():
                result = self.network(**inputs)
            places = [i for i, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
            if index == 0:
                begin, step = places[0], len(places) - STRIDE
            else:
                begin += step
            # 1 where no answer may be: all but the context, and the first token, which means "no answer".
            outside = np.array([[0 if i in (0, *places) else 1 for i in range(len(encoding.ids))]])
            starts, ends, scores, _ = select_starts_ends(
                result.start_logits.double().numpy(),
                result.end_logits.double().numpy(),
                outside,
                np.ones_like(outside),
                top_k=top_k * 2 + 10 if is_aligned else top_k,
            )
            for start, end, score in zip(starts, ends, scores, strict=True):
                if {start, end} - {*places}:  # the first token, with a score of zero
                    continue
                # A window may begin or end within a word: words are those of the whole context.
                tokens = [begin + token - places[0] for token in (start, end)]
                spans = [whole.token_to_chars(token) for token in tokens]
                words = [whole.token_to_word(token) for token in tokens]
                if is_aligned and None not in words:
                    spans = [whole.word_to_chars(word, 1) for word in words]
                answer = context[spans[0][0] : spans[1][1]]
                equal = next((each for each in found if each["answer"].lower() == answer.lower()), None)
                if equal:
                    equal["score"] += score
                else:
                    found.append({"answer": answer, "score": score, "start": spans[0][0], "end": spans[1][1]})
        return sorted(found, key=lambda each: -each["score"])[:top_k]


def assert_best(answers: Any, expected: list[dict[str, Any]], tolerance: float) -> None:
    """The answers are the oracle's, in its order."""
    given = answers if isinstance(answers, list) else [answers]
    assert given == [{**each, "score": pytest.approx(each["score"], abs=tolerance)} for each in expected]
