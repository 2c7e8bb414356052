"""Triton's gRPC service, in the application at /: replicas answer ModelInfer, `Models.describe` the other methods."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from deploy.hosts.frontend.forms import Parsed
from deploy.hosts.frontend.http import Rejected, Response, log_bug, off_loop, reject
from deploy.hosts.frontend.memory import Hold
from deploy.hosts.frontend.routes import Models
from deploy.protocol import messages_pb2
from deploy.protocol.errors import RequestError
from deploy.protocol.rejections import BODY_TOO_LARGE, BUSY, FAILED
from handlers.errors import InvalidInput
from handlers.protocol import wire
from handlers.protocol.codings import decompress
from handlers.protocol.grpc_inference import parse
from handlers.protocol.statuses import INVALID_ARGUMENT, UNIMPLEMENTED, meaning_of
from torchserve_client.payloads import Json

# Triton's methods of a repository -> their actions; only one process has them.
REPOSITORY_METHODS = {"RepositoryIndex": "", "RepositoryModelLoad": "load", "RepositoryModelUnload": "unload"}
METADATA = (wire.SPACE_HEADER, wire.CACHE_HEADER.lower())  # headers of a response that a call has, too
CODES = {code.value[0]: code for code in grpc.StatusCode}


class Written(bytes):
    """A serialised message, as Serve's proxy takes it."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        return bytes(self)


class Service:
    """Serve calls the methods of the service by their names."""

    def __init__(self, models: Models) -> None:
        self.models = models


def _method(name: str) -> Callable[[Service, bytes, Any], Awaitable[Written]]:
    async def call(self: Service, message: bytes, grpc_context: object) -> Written:
        try:
            if name == "ModelInfer":
                return _received(await _infer(self.models, message, grpc_context), grpc_context)
            asked = getattr(messages_pb2, f"{name}Request").FromString(message)
            answered = getattr(messages_pb2, f"{name}Response")()
            if name in REPOSITORY_METHODS:
                found = await _manage(self.models, name, asked)
            else:
                found = await self.models.describe(name, getattr(asked, "name", ""), getattr(asked, "version", ""))
            return Written(ParseDict(found, answered, ignore_unknown_fields=True).SerializeToString())
        except (RequestError, Rejected, InvalidInput) as error:
            return fail(grpc_context, *_explain(error))
        except DecodeError:
            return fail(grpc_context, INVALID_ARGUMENT, f"The message is not a valid {name}Request.")
        except Exception as error:
            log_bug(error)
            return fail(grpc_context, meaning_of(FAILED.status).grpc, FAILED.message)

    call.__name__ = name
    return call


def _explain(error: Exception) -> tuple[int, str]:
    """Return the status and the message of a rejected request."""
    if isinstance(error, RequestError):
        return error.grpc_status, str(error)
    status, message = (error.args[0].status, error.args[0].message) if isinstance(error, Rejected) else (0, str(error))
    return meaning_of(status or getattr(error, "code", 500)).grpc, message


async def _manage(models: Models, method: str, asked: Any) -> Json:
    """Answer a method of a repository."""
    if models.repository is None:
        raise RequestError(400, f"{method}: this server has no repository", UNIMPLEMENTED)
    if method == "RepositoryIndex":
        return {"models": models.repository.index(is_ready=asked.ready)}
    parameters = {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in asked.parameters.items()}
    await models.repository.manage(REPOSITORY_METHODS[method], asked.model_name, parameters)
    return {}


for _name in (*wire.GRPC_METHODS, *REPOSITORY_METHODS):
    setattr(Service, _name, _method(_name))


async def _infer(models: Models, message: bytes, context: grpc.aio.ServicerContext) -> Response:
    if len(message) > models.body_bytes:
        return reject(BODY_TOO_LARGE.saying(f"A message may have {models.body_bytes} bytes."))
    hold = Hold(models.memory)
    try:
        if not hold.take(len(message)):
            return reject(BUSY)
        message = await models.inflate(hold, message, decompress)
        asked = await off_loop(len(message), parse, message, models.body_bytes)
        known = (*wire.TERMS_HEADERS, wire.SPACE_HEADER)
        terms = {name: value for name, value in context.invocation_metadata() if name in known}
        headers = {"content-type": wire.PROTOBUF, **terms}
        body, path = Parsed.of(message, asked), f"/{wire.SERVICE}/ModelInfer"
        return await models.predict(asked.model_name, asked.model_version, headers, body, path)
    except Rejected as rejected:
        return reject(*rejected.args)
    finally:
        hold.free()


def _received(answer: Response, context: grpc.aio.ServicerContext) -> Written:
    named = {name.lower(): value for name, value in answer.headers.items()}
    context.set_trailing_metadata([(name, named[name]) for name in METADATA if name in named])
    if answer.status == 200:
        return Written(answer.body)
    message = unquote(answer.headers.get(wire.GRPC_MESSAGE_HEADER, "")) or _message_of(answer.body)
    return fail(context, int(answer.headers.get(wire.GRPC_STATUS_HEADER) or meaning_of(answer.status).grpc), message)


def _message_of(body: bytes) -> str:
    """Return the message of an error in TorchServe's form; another body as it is."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return body.decode("utf-8", "replace")


def fail(context: grpc.aio.ServicerContext, code: int, message: str) -> Written:
    context.set_code(CODES[code])
    context.set_details(message)
    return Written()
