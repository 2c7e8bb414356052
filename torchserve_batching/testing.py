"""Tests of your own task without an archive or a server: `run_task("colour_names.py", ["#00007a"])`."""

import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.archives import custom
from deploy.archives.sources import source
from deploy.loader import NoMetrics, PlainContext
from deploy.models import ModelEntry, models
from torchserve_client.payloads import Json

__all__ = ["run_task"]


def run_task(
    task: str | Path,
    requests: Sequence[object],
    *,
    settings: Mapping[str, object] | None = None,
    name: str | None = None,
) -> list[Any]:
    """Send requests to a task in one batch, as TorchServe's worker does.

    Args:
        task: its file, beside its models.yaml; without one, without settings, staged files and weights.
        requests: the body of each: bytes for a raw body, a text, or a JSON value, such as {"colour": "#00007a"} or
            {"instances": [...], "top_k": 3}.
        settings: settings under `handler:` that replace those of model-config.yaml.
        name: the model of models.yaml; default: the first one of this task.

    Returns:
        The response to each request as parsed JSON; an error is {"code": 422, "type": ..., "message": ...}.

    Raises:
        InvalidConfig: the task or its settings cannot be served.
        WeightsUnavailable: its weights are missing.
    """
    path = Path(task).resolve()
    entry = _find_entry(path, name)
    with tempfile.TemporaryDirectory() as folder:
        custom.stage(entry, source(entry, None), "auto", Path(folder))
        handler = custom.import_task(path)()
        own = {**entry.settings(), **(settings or {}), "scheduling": {"mode": "classic"}}
        level, limit = logging.getLogger().level, getattr(sys, "tracebacklimit", None)
        try:
            config = {**entry.config(), "handler": own}
            context = PlainContext(entry.name, folder, {}, len(requests), None, NoMetrics(), config)
            handler.initialize(context)
        finally:
            # As TorchServe needs them, and a test does not.
            logging.getLogger().setLevel(level)
            sys.tracebacklimit = limit
        responses = handler.service.pipeline.answer([_make_row(each) for each in requests])
    return [json.loads(response.body) for response in responses]


def _find_entry(path: Path, name: str | None) -> ModelEntry:
    listed = path.with_name("models.yaml")
    entries = [each for each in models(listed).values() if each.handler == path.name] if listed.is_file() else []
    for entry in entries:
        if name in (None, entry.name):
            return entry
    if name is not None:
        raise LookupError(f"{listed}: no model {name} with task: {path.name}")
    return ModelEntry(path.stem, path.name, "1", path.with_suffix(""))


def _make_row(request: object) -> tuple[Json, Json]:
    """Return the row and the headers of a request as TorchServe has them."""
    is_raw = isinstance(request, bytes | str)
    content_type = (
        ("application/octet-stream" if isinstance(request, bytes) else "text/plain") if is_raw else "application/json"
    )
    return {"body": request if is_raw else json.dumps(request).encode()}, {"body": {"content-type": content_type}}
