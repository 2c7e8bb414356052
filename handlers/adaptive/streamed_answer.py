"""An answer that is sent in pieces, from its first chunk to its last. Pure.

text as it is generated -> add -> what of it was not sent yet
"""

from dataclasses import dataclass, field

from handlers.pipeline.slots import Generated


class Diverged(Exception):
    """A second run of the engine made other text than the first, of which a part was sent."""


@dataclass(slots=True)
class StreamedAnswer:
    """How far the answer to one request has come.

    A micro-batch that fails is run again, in halves. What was sent of an item stays sent, so the second run's text has
    to begin with it.

    Attributes:
        has_begun: whether a chunk was sent.
        is_broken: whether the rest cannot be sent, so that it ends with an error.
        is_abandoned: whether its client is gone.
    """

    has_begun: bool = False
    is_broken: bool = False
    is_abandoned: bool = False
    _sent: str = ""
    _text: str = ""
    _generated: Generated | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        """Whether nobody needs what is generated from here on."""
        return self.is_broken or self.is_abandoned

    def add(self, generated: Generated, text: str) -> str:
        """Take text that comes next.

        Args:
            generated: by which run of the engine.
            text: its next piece.

        Returns:
            What is to be sent of it.

        Raises:
            Diverged: what was sent already is not how this run's text begins.
        """
        if generated is not self._generated:
            self._generated, self._text = generated, ""
        self._text += text
        sent = len(self._sent)
        if self._text[:sent] != self._sent[: len(self._text)]:
            raise Diverged
        new = self._text[sent:]
        self._sent += new
        return new
