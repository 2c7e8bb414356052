"""The check that an archive answers as its model does. An archive that fails it is not built.

files of an archive -> the task, loaded as a worker does, in fp32 -> samples, one by one and in micro-batches
the model           -> the library that owns it                   -> samples one by one -> nearly equal?
"""

import json
from dataclasses import replace
from pathlib import Path

from deploy.archives.sources import Source
from deploy.archives.tasks import import_quietly, load_task, task_of
from deploy.models import Engine, ModelEntry
from handlers.archive_files import FIDELITY
from handlers.config import parse
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.pipeline.task import samples_of
from handlers.warm_up import decode_items, run


def check(model: ModelEntry, origin: Source, engine: Engine, folder: Path, out: Path) -> None:
    """Compare an archive's answers; write the words, the error and the settings that it needs to fidelity.json."""
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    is_compared = task_of(model).samples is not None
    runs: Engine = "torch" if engine == "torch" else "openvino"
    settings = replace(config, engine=runs if is_compared else engine, precision="fp32" if is_compared else "auto")
    name = "PyTorch" if engine == "torch" else "OpenVINO" if is_compared else "its engine"
    try:
        task = load_task(model.handler, folder, settings)
        if samples := samples_of(task):
            run(task, decode_items(task, samples[:1]))
    except InvalidConfig:
        raise
    except Exception as error:
        raise Unfaithful(f"{name} cannot answer a sample: {reason(error)}") from error
    if not is_compared:
        (out / FIDELITY).write_text("{}")
        return
    kind = "image_fidelity" if task_of(model).samples == "images" else "text_fidelity"
    words, largest = import_quietly(f"deploy.archives.precision.{kind}").check(model, origin, config, task, name)
    padding = getattr(task.config, "padding", None)
    needed = {} if padding == getattr(config, "padding", None) else {"padding": padding}
    (out / FIDELITY).write_text(
        json.dumps({"said": words, "engine": runs, "largest_error": largest, "settings": needed})
    )
