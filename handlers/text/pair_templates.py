"""A cross-encoder's chat template: a query and a document become one text, as in sentence-transformers.

the folder's chat template, its prompt -> PairTemplate: pairs -> encode -> token ids -> cut -> those that fit
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from handlers.aliases import Json
from handlers.checkpoints import load_tokenizer
from handlers.errors import InvalidConfig, InvalidOption, reason
from handlers.text.inputs import Side
from handlers.text.sentence_modules import reranker_settings

# Parts of a template that reads the content of a message as a list, by sentence-transformers.
STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "message.content[")
# Pairs whose texts must differ, and texts without a common token at their ends.
PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"), ("0", "0"), ("1 2 3 4", "1 2 3 4"))
WAY_OUT = (
    "replace chat_template.jinja by one that renders messages of the roles query and document as the model's card "
    "formats them, or remove it to score texts that clients format"
)

Pairs = Sequence[tuple[str, str]]


class PairTemplate:
    """Renders with transformers, so that a template means what it means there."""

    def __init__(self, folder: Path, prompt: str, *, trust_remote_code: bool) -> None:
        """Raise InvalidConfig if the template does not render both texts of a pair."""
        self.tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        settings = reranker_settings(folder)
        self.variables: Json = (settings.get("processing_kwargs") or {}).get("chat_template") or {}
        stated = ((settings.get("modality_config") or {}).get("message") or {}).get("format", "auto")
        is_found = any(each in self.tokenizer.chat_template for each in STRUCTURED)
        self.is_structured = stated == "structured" or (stated == "auto" and is_found)
        self.system = [self._message("system", prompt)] if prompt else []
        try:
            base, query, document = map(self._render, PROBES[:3])
        except Exception as error:
            raise InvalidConfig(f"chat template: it does not render a pair, {reason(error)}; {WAY_OUT}") from None
        if dropped := [role for role, text in (("query", query), ("document", document)) if text == base]:
            raise InvalidConfig(f"chat template: it does not render the {' and the '.join(dropped)}; {WAY_OUT}")
        first, second = self.encode(PROBES[3:])
        same = [*takewhile(lambda ends: ends[0] == ends[1], zip(reversed(first), reversed(second), strict=False))]
        self.suffix = [own for own, _ in reversed(same)]  # the tokens behind the texts, which no cut removes

    def _message(self, role: str, text: str) -> Json:
        return {"role": role, "content": [{"type": "text", "text": text}] if self.is_structured else text}

    def _render(self, pair: tuple[str, str]) -> str:
        messages = [*self.system, *map(self._message, ("query", "document"), pair)]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, **self.variables))

    def encode(self, pairs: Pairs) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer([*map(self._render, pairs)], add_special_tokens=False)["input_ids"]
        return ids

    def cut(self, ids: Sequence[int], limit: int, side: Side) -> list[int]:
        """Cut a pair's tokens, and write the template's last ones over the end, as sentence-transformers does."""
        if limit <= len(self.suffix):
            raise InvalidOption(
                f"truncation: {limit} tokens have no room for text; the template ends in {len(self.suffix)}."
            )
        kept = ids[:limit] if side == "right" else ids[-limit:]
        return [*kept[: limit - len(self.suffix)], *self.suffix]
