"""Answers inputs with an archive, without a server.

    inputs -> rows, as TorchServe's frontend makes them -> the handler's `handle` -> a status and a body for each

deploy.loader loads the archive, once in a process.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy import Json
from deploy.loader import LoadedArchive

# Content types by the Python type of an input, as torchserve_client sends them; a dict needs none.
OCTETS, TEXT = "application/octet-stream", "text/plain; charset=utf-8"
BATCH_S = 2 * 86_400  # seconds of TorchServe's responseTimeout, two days; a handler allows a batch half of it


class Answer(NamedTuple):
    """The outcome of one input, equal to the response of a server.

    Attributes:
        status: HTTP status; 400 or more for an error.
        body: JSON; of an error {"code", "type", "message"}.
    """

    status: int
    body: bytes


class Model:
    """One archive's handler."""

    def __init__(self, archive: Path, *, batch_size: int, threads: int = 0, gpu: int | None = None) -> None:
        """Load it; seconds.

        Args:
            archive: NAME.mar, or the folder of an archive that was built as one.
            batch_size: the most inputs of a call of `answers`; the model runs once at this size before the first call.
            threads: processor threads of the engine and of decoding; 0 for the archive's own setting, by default one
                on every core.
            gpu: the device's number; None for the processor.

        Raises:
            FileNotFoundError, shutil.ReadError: not an archive.
            ValueError: the archive has no handler.
            Exception: the handler does not load it, for example InvalidConfig: a file has changed or is missing.
        """
        loaded = LoadedArchive(
            archive, "classic", batch_size=batch_size, response_timeout_s=BATCH_S, threads=threads, gpu=gpu
        )
        self.folder = loaded.folder  #: the folder of its files
        self._loaded, self._handler, self._context = loaded, loaded.handler, loaded.context
        logging.getLogger("ts.metrics").setLevel(logging.WARNING)  # no program reads a worker's log lines here

    def answers(
        self, inputs: Sequence[bytes | str | Mapping[str, object]], options: Mapping[str, object]
    ) -> list[Answer]:
        """Answer all inputs in one batch; an input that fails affects no other.

        Args:
            inputs: bodies of requests: bytes, a text, or a JSON object.
            options: options of each input, as in {"top_k": 3}.

        Returns:
            An answer for each, in order.
        """
        if not inputs:
            return []
        rows = [_row(each, options) for each in inputs]
        from ts.context import RequestProcessor  # noqa: PLC0415

        self._context.request_ids = {index: str(index) for index in range(len(rows))}
        self._context.request_processor = [RequestProcessor(headers) for _, headers in rows]
        bodies = self._handler.handle([row for row, _ in rows], self._context)
        statuses = [self._context.get_response_status(index)[0] for index in range(len(rows))]
        return [Answer(status, bytes(body)) for status, body in zip(statuses, bodies, strict=True)]


def _row(value: bytes | str | Mapping[str, object], options: Mapping[str, object]) -> tuple[Json, Json]:
    """Make the fields and headers that TorchServe's frontend would send."""
    if isinstance(value, Mapping):
        return {"body": {**options, **value}}, {}
    content = value.encode() if isinstance(value, str) else value
    kind = {"content-type": TEXT if isinstance(value, str) else OCTETS}
    if not options:
        return {"body": content}, {"body": kind}
    # A form, whose fields are text.
    return {"data": content, **{name: json.dumps(each).encode() for name, each in options.items()}}, {"data": kind}
