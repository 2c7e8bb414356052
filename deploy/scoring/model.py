"""An archive, loaded in this process as TorchServe's worker loads it, and asked without a server.

    NAME.mar -> unpacked -> first on sys.path -> its handler's one class -> initialize: files checked, model loaded
    inputs   -> rows, as TorchServe's frontend makes them -> handle -> a status and a body for each

A process has one of them: an archive brings a package `handlers` of its own, and Python has one of a name.
"""

import importlib
import inspect
import json
import logging
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MANIFEST = Path("MAR-INF", "MANIFEST.json")
CONFIG = "model-config.yaml"
# Content types by the Python type of an input, as torchserve_client sends them; a dict is handed over parsed.
OCTETS, TEXT = "application/octet-stream", "text/plain; charset=utf-8"


# Seconds that a batch may take: TorchServe's responseTimeout, of which a handler gives a batch a half. A day.
BATCH_S = 2 * 86_400


class Answer(NamedTuple):
    """What one input came to: what a client of the server would get.

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
            archive: NAME.mar, or the folder of one that was built as a folder.
            batch_size: most inputs of a call of `answers`; the model is run at this size before the first.
            threads: processor threads of the engine and of decoding; 0 takes what the archive says, which is one on
                every core where it says nothing.
            gpu: the device's number; None for the processor.

        Raises:
            FileNotFoundError, zipfile.BadZipFile: it is no archive.
            ValueError: it has no handler.
            Exception: the handler does not load it, InvalidConfig above all: a file is changed or missing.
        """
        # An unpacked archive goes with its process: nobody may change it meanwhile, and a task may write into its own.
        self._unpacked = tempfile.TemporaryDirectory(prefix="archive-", ignore_cleanup_errors=True)
        #: Where its files are.
        self.folder = folder = archive if archive.is_dir() else Path(self._unpacked.name)
        if not archive.is_dir():
            with zipfile.ZipFile(archive) as content:
                content.extractall(folder)
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        self._handler = _handler(folder, manifest)
        self._context = _context(folder, manifest, _settings(folder, threads), batch_size, gpu)
        self._handler.initialize(self._context)
        # Nobody reads a worker's lines here.
        logging.getLogger("ts.metrics").setLevel(logging.WARNING)

    def answers(self, inputs: Sequence[bytes | str | Mapping[str, Any]], options: Mapping[str, Any]) -> list[Answer]:
        """Ask for all of them together, each by itself: one that fails touches no other.

        Args:
            inputs: the bodies of as many requests: bytes, a text, or a JSON object.
            options: what the model is told beside each of them, as in {"top_k": 3}.

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


class _NoMetrics:
    """Stands in the place of TorchServe's metrics, which nobody would read."""

    def get_metric(self, name: str, kind: object) -> "_NoMetrics":  # noqa: ARG002
        return self

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        """Forget it."""


def _handler(folder: Path, manifest: Mapping[str, Any]) -> Any:
    """Import the archive's handler as TorchServe does: by its file's name, with the archive first on the path."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    module = importlib.import_module(Path(manifest["model"]["handler"]).stem)
    own = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    if len(own) != 1 or not hasattr(own[0], "initialize"):
        raise ValueError(f"{module.__name__}: not a handler: a module with one class")
    return own[0]()


def _settings(folder: Path, threads: int) -> dict[str, Any]:
    """Read the archive's settings, in classic mode: batches are formed here, and nobody waits."""
    settings: dict[str, Any] = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")) or {}
    handler = {**(settings.get("handler") or {}), "scheduling": {"mode": "classic"}}
    if threads:
        handler |= {"threads": threads, "decode_threads": threads}
    return {**settings, "continuousBatching": False, "handler": handler, "responseTimeout": BATCH_S}


def _context(
    folder: Path, manifest: Mapping[str, Any], settings: dict[str, Any], batch_size: int, gpu: int | None
) -> Any:
    from ts.context import Context  # noqa: PLC0415

    name = manifest["model"]["modelName"]
    return Context(name, str(folder), manifest, batch_size, gpu, "", True, _NoMetrics(), settings)


def _row(value: bytes | str | Mapping[str, Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make the fields and headers that TorchServe's frontend would hand over."""
    if isinstance(value, Mapping):
        return {"body": {**options, **value}}, {}
    content = value.encode() if isinstance(value, str) else value
    kind = {"content-type": TEXT if isinstance(value, str) else OCTETS}
    if not options:
        return {"body": content}, {"body": kind}
    # A form, whose fields are text.
    return {"data": content, **{name: json.dumps(each).encode() for name, each in options.items()}}, {"data": kind}
