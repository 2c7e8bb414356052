"""An archive of stock TorchServe, loaded from a folder and called as TorchServe does it. Its own code runs here.

files of the archive -> OriginalArchive; rows -> its handler -> an answer, status and headers for each
"""

import importlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from handlers.config import SETTINGS, HandlerConfig
from handlers.errors import InvalidConfig, ItemError, OutOfMemory, WrongOutput
from handlers.torchserve import BASE_MODULE, blocked_imports

ORIGINAL = "original"  # the folder of an archive that contains the files of an old archive


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class StockConfig(HandlerConfig):
    """Settings of an old archive's handler."""

    decode_input_request: bool = Field(
        default=True,
        description="Whether the handler receives JSON as objects and text as text. This is TorchServe's default, "
        "which `config.properties` here turns off for the other tasks.",
    )


class OriginalRow(NamedTuple):
    """A request as TorchServe passes it to a handler."""

    values: Mapping[str, object]  # the body, or the fields of a form, by name
    headers: Mapping[str, object]  # in their own case, with a mapping for each field's content type


class OriginalResponse(NamedTuple):
    """The answer of an old handler to one row, as TorchServe would send it."""

    body: bytes
    content_type: str
    status: int
    headers: Mapping[str, str]


class OriginalArchive:
    """An old archive, loaded and called as stock TorchServe does it. Its code runs in this process."""

    def __init__(self, context: Any, folder: Path) -> None:
        """Load the handler that the manifest names; its `initialize` sees its own folder, manifest and GPU."""
        # TorchServe starts a worker in the folder of its archive, which comes first on its path.
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        _provide_captum()
        # Old handlers may use ONNX Runtime, which this module has hidden. OpenVINO's backend of torch.compile is found
        # without the import that is left out.
        sys.modules.pop(BASE_MODULE, None)
        with blocked_imports("openvino.torch", importer=BASE_MODULE):
            importlib.import_module(BASE_MODULE)
        from ts.model_loader import ModelLoaderFactory  # noqa: PLC0415

        properties = context.system_properties
        handler = json.loads((folder / "MAR-INF" / "MANIFEST.json").read_bytes()).get("model", {}).get("handler")
        if not isinstance(handler, str):
            raise InvalidConfig(f"{ORIGINAL}/MAR-INF/MANIFEST.json names no handler")
        try:
            if (folder / (module := Path(handler.partition(":")[0]).stem)).with_suffix(".py").is_file():
                # TorchServe reports an import that fails inside the module as a module that is missing.
                importlib.import_module(module)
            self._service = ModelLoaderFactory.get_model_loader().load(
                context.model_name,
                str(folder),
                handler,
                properties.get("gpu_id"),
                properties.get("batch_size"),
                limit_max_image_pixels=properties.get("limit_max_image_pixels", True),
                metrics_cache=context.metrics,
            )
        except ModuleNotFoundError as error:
            raise InvalidConfig(
                f"the handler {handler} of the old archive imports {error.name}, which is not installed; add it to the "
                "environment with deploy/environment.sh, as docs/how-to/move.md shows"
            ) from error

    def handle(self, rows: Sequence[OriginalRow]) -> list[OriginalResponse | ItemError]:
        """Call the old handler in a context of these rows; the error of a single row if it raises TorchServe's own."""
        from ts.context import RequestProcessor  # noqa: PLC0415
        from ts.utils.util import PredictionException  # noqa: PLC0415

        context = copy(self._service.context)
        context.request_ids = context.metrics.request_ids = {index: str(uuid4()) for index in range(len(rows))}
        context.request_processor = [RequestProcessor(dict(row.headers)) for row in rows]
        try:
            answers = self._service._entry_point([dict(row.values) for row in rows], context)  # noqa: SLF001
        except PredictionException as error:
            if len(rows) > 1:
                raise
            code = error.error_code if 400 <= int(error.error_code) < 600 else 500
            return [ItemError(code, type(error).__name__, str(error.message))]
        except torch.OutOfMemoryError as error:
            raise OutOfMemory from error
        if not isinstance(answers, list) or len(answers) != len(rows):
            found = f"{len(answers)} answers" if isinstance(answers, list) else f"a {type(answers).__name__}"
            raise WrongOutput(f"The handler must return a list of {len(rows)} answers; it returned {found}.")
        return [_reply(answer, context, index) for index, answer in enumerate(answers)]


def decode_values(row: OriginalRow) -> OriginalRow:
    """Decode JSON and text as ts.protocol.otf_message_handler does with `decode_input_request=true`."""
    values = {name: _decode(value, row.headers.get(name)) for name, value in row.values.items()}
    return row._replace(values=values)


def _decode(value: object, header: object) -> object:
    content_type = header.get("content-type", "") if isinstance(header, Mapping) else ""
    if isinstance(value, bytes | bytearray):
        with suppress(ValueError, RecursionError):  # a body that cannot be decoded reaches the handler as bytes
            if content_type == "application/json":
                return json.loads(value.decode())
            if content_type.startswith("text"):
                return value.decode()
    return value


def _reply(answer: Any, context: Any, index: int) -> OriginalResponse:
    """Write an answer as ts.protocol.otf_message_handler does, and name its type, which TorchServe leaves open."""
    if isinstance(answer, bytes | bytearray):
        body, content_type = bytes(answer), "application/octet-stream"
    elif isinstance(answer, str):
        body, content_type = answer.encode(), "text/plain; charset=utf-8"
    elif isinstance(answer, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(answer, buffer)
        body, content_type = buffer.getvalue(), "application/octet-stream"
    else:
        body, content_type = json.dumps(answer, indent=2).encode(), "application/json"
    status, _ = context.get_response_status(index)
    headers = {name: str(value) for name, value in context.get_response_headers(index).items()}
    content_type = headers.pop("content-type", "") or content_type
    return OriginalResponse(body, content_type, status or 200, headers)


class _Explainer:
    """Replaces every class of captum if captum is not installed."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        pass

    def attribute(self, *arguments: object, **settings: object) -> Any:
        raise NotImplementedError("explanations need captum, which is not installed")


def _provide_captum() -> None:
    """Let TorchServe's own handlers load without captum: they import it for explanations, and do not declare it."""
    if "captum" in sys.modules or importlib.util.find_spec("captum") is not None:
        return
    package, attr = ModuleType("captum"), ModuleType("captum.attr")

    def find(name: str) -> type[_Explainer]:
        if name.startswith("_"):  # others look through all modules for attributes such as __file__
            raise AttributeError(name)
        return _Explainer

    attr.__dict__["__getattr__"] = find
    package.__dict__["attr"] = attr
    sys.modules |= {"captum": package, "captum.attr": attr}
