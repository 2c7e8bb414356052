"""`score`: a Ray Dataset in, the same rows with an answer or an error each out.

    Dataset -> map_batches, an actor pool of deploy.scoring.rows.Scorer -> Dataset

It is as lazy as any Dataset: nothing runs before something is asked of what it returns.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.data import Dataset


def score(
    dataset: "Dataset",
    archive: str | Path,
    *,
    column: str,
    options: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    threads: int | None = None,
    **ray_remote_args: Any,
) -> "Dataset":
    """Ask a model about every row.

    Args:
        dataset: rows with an input each.
        archive: NAME.mar, or the folder of one, under a path that every actor's machine has.
        column: where a row's input is: bytes, a text, or an object as the server takes it in JSON.
        options: what the model is told beside every input, as in {"top_k": 3}.
        batch_size: rows that go through a model's hooks together; they form its micro-batches by the archive's limits.
        concurrency: number of actors, each with a model; (least, most) lets Ray choose.
        num_cpus, num_gpus: what Ray reserves for each actor; the model runs on a GPU where it is given one.
        threads: processor threads of each actor; None for `num_cpus`, rounded up.
        ray_remote_args: what else `ray.remote` takes for an actor: memory, resources.

    Returns:
        The rows, without `column` where it is bytes, and with two columns more: `answer`, the JSON that the server
        would answer, and `error`, {"code", "type", "message"} as the server has it, code 0 where nothing was asked. One
        of them is null.
    """
    from ray.data import ActorPoolStrategy  # noqa: PLC0415

    # pyarrow comes with Ray, and this module is imported without either.
    from deploy.scoring.rows import Scorer  # noqa: PLC0415

    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    arguments = {
        "options": dict(options or {}),
        "batch_size": batch_size,
        "threads": math.ceil(num_cpus) if threads is None else threads,
        "is_on_gpu": num_gpus > 0,
    }
    return dataset.map_batches(
        Scorer,
        fn_constructor_args=(str(archive), column),
        fn_constructor_kwargs=arguments,
        batch_size=batch_size,
        # Rows of bytes and objects go in as Arrow has them, and the answers stand beside them without a copy.
        batch_format="pyarrow",
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        udf_modifying_row_count=False,
        **ray_remote_args,
    )
