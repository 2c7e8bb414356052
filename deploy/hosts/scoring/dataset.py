"""`score`: adds an answer or an error to each row of a Ray Dataset.

    Dataset -> map_batches, an actor pool -> Scorer: inputs, or the error of a row without one    -> Model.answers
            -> Dataset with columns `answer` and `error`

The result is lazy, as any Dataset. Functions import Ray and its pyarrow, because a server's environment has neither.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.loader import LoadedArchive
from torchserve_client.payloads import Json

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


if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset


def score(
    dataset: "Dataset",
    archive: str | Path,
    *,
    column: str,
    options: Mapping[str, object] | None = None,
    batch_size: int = 64,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    threads: int | None = None,
    **ray_remote_args: object,
) -> "Dataset":
    """Predict every row with a model.

    Args:
        dataset: rows with an input each.
        archive: NAME.mar, or the folder of one, under a path that every actor's machine has.
        column: name of the inputs' column: bytes, a text, or an object of the server's JSON.
        options: options of every input, such as {"top_k": 3}.
        batch_size: rows that go through a model's hooks together; they form its micro-batches by the archive's limits.
        concurrency: number of actors, each with a model; (least, most) lets Ray choose.
        num_cpus, num_gpus: Ray's reservation for each actor; with a GPU, the model runs on it.
        threads: processor threads of each actor; None for `num_cpus`, rounded up.
        ray_remote_args: further arguments of `ray.remote` for an actor: memory, resources.

    Returns:
        The rows, without a `column` of bytes, and with two more columns: `answer`, the JSON of a server's response, and
        `error`, its {"code", "type", "message"}, with code 0 for a row without an input. One of them is null.
    """
    from ray.data import ActorPoolStrategy  # noqa: PLC0415

    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    model = {
        "batch_size": batch_size,
        "threads": math.ceil(num_cpus) if threads is None else threads,
        "gpu": 0 if num_gpus > 0 else None,  # Ray shows an actor the devices that are its own, from 0 on
    }
    return dataset.map_batches(
        Scorer,
        fn_constructor_args=(str(archive), column, dict(options or {})),
        fn_constructor_kwargs=model,
        batch_size=batch_size,
        # Rows of bytes and objects stay in Arrow's format, and the answers are added without a copy.
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        udf_modifying_row_count=False,
        **ray_remote_args,
    )


class Scorer:
    """The class of the actors: one model, one batch of rows at a time."""

    def __init__(self, archive: str, column: str, options: Mapping[str, object], **model: Any) -> None:
        """Load the archive; `model` are arguments of `Model`."""
        self._model = Model(Path(archive), **model)
        self._column, self._options = column, options

    def __call__(self, table: "pa.Table") -> "pa.Table":
        import pyarrow as pa  # noqa: PLC0415

        inputs = [_checked(value) for value in table.column(self._column).to_pylist()]
        sent = [each for each in inputs if not isinstance(each, Answer)]
        received = iter(self._model.answers(sent, self._options))
        answers = [each if isinstance(each, Answer) else next(received) for each in inputs]
        good = [None if each.status >= 400 else each.body.decode() for each in answers]
        errors = [json.loads(each.body) if each.status >= 400 else None for each in answers]
        kind = table.schema.field(self._column).type
        kept = table.drop_columns(self._column) if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else table
        error = pa.struct([("code", pa.int64()), ("type", pa.string()), ("message", pa.string())])
        scored = kept.append_column("answer", pa.array(good, pa.string()))
        return scored.append_column("error", pa.array(errors, error))


def _checked(value: object) -> "bytes | str | Mapping[str, object] | Answer":
    """Return an input, or the error of a row without one."""
    if isinstance(value, Mapping):
        # Arrow gives every row all fields, and null for the fields that a row lacks.
        return {name: each for name, each in value.items() if each is not None}
    if isinstance(value, bytes | str):
        return value
    message = f"an input is bytes, a text or an object, not {type(value).__name__}"
    # The client writes code 0 for an error that no server answered.
    return Answer(400, json.dumps({"code": 0, "type": "InvalidPayload", "message": message}).encode())
