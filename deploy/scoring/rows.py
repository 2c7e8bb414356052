"""What an actor does with the rows of a Dataset: a batch of them through the model, an answer or an error beside each.

    pyarrow.Table -> inputs, or the error of a row that holds none -> Model.answers -> columns `answer` and `error`

The handler answers each row by itself, so that a row that fails has an error and the others their answers.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from deploy.scoring.model import Answer, Model

ANSWER, ERROR = "answer", "error"
ERROR_TYPE = pa.struct([("code", pa.int64()), ("type", pa.string()), ("message", pa.string())])


class Scorer:
    """One model, and what it is asked of each row."""

    def __init__(
        self,
        archive: str,
        column: str,
        *,
        options: Mapping[str, Any],
        batch_size: int,
        threads: int,
        is_on_gpu: bool,
    ) -> None:
        """Load the archive; see `deploy.scoring.dataset.score`, whose arguments these are."""
        # Ray shows an actor the devices that are its own, from 0 on.
        self._model = Model(Path(archive), batch_size=batch_size, threads=threads, gpu=0 if is_on_gpu else None)
        self._column = column
        self._options = options

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score one batch."""
        inputs = [_checked(value) for value in table.column(self._column).to_pylist()]
        sent = [each for each in inputs if not isinstance(each, Answer)]
        received = iter(self._model.answers(sent, self._options))
        answers = [each if isinstance(each, Answer) else next(received) for each in inputs]
        good = [None if each.status >= 400 else each.body.decode() for each in answers]
        errors = [_error(each) if each.status >= 400 else None for each in answers]
        kind = table.schema.field(self._column).type
        kept = table.drop_columns(self._column) if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else table
        scored = kept.append_column(ANSWER, pa.array(good, pa.string()))
        return scored.append_column(ERROR, pa.array(errors, ERROR_TYPE))


def _checked(value: Any) -> Any:
    """Return an input, or the error of a row that holds none."""
    if isinstance(value, Mapping):
        # Arrow gives every row all fields, and null to those that a row has not.
        return {name: each for name, each in value.items() if each is not None}
    if isinstance(value, bytes | str):
        return value
    message = f"an input is bytes, a text or an object, not {type(value).__name__}"
    # The client writes code 0 for an error that no server answered.
    return Answer(400, json.dumps({"code": 0, "type": "InvalidPayload", "message": message}).encode())


def _error(answer: Answer) -> dict[str, Any]:
    error = json.loads(answer.body)
    return {"code": error["code"], "type": error["type"], "message": error["message"]}
