"""A node's models and metadata, from its management API and its handlers.

    GET /models, /models/M/all, /models/M           -> list_models -> (model, version) -> Placement
    GET /predictions/M/V with X-Model-Metadata: 1   -> fetch_metadata -> {"platform", "inputs", "outputs", ...}
    the same with X-Model-Metadata: sample          -> ask_sample -> the status of the model's own sample

No request has `?customized=true`: an adaptive model never finishes it, and stops serving. Each request has the token of
its API, which is read from the node's key file each time.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from deploy.gateway.state import Placement
from deploy.nodes.run.node import Node, read_tokens
from deploy.protocol.deep import ANSWER_S, SAMPLE
from deploy.protocol.rejections import DRAINING
from handlers.protocol.wire import METADATA_HEADER, NAME_BYTES
from torchserve_client.management import OVERLAP, PAGE_MODELS
from torchserve_client.payloads import Json

CONNECT_S = 1.0  # seconds to connect, which takes no work of the node
# Seconds for a response of the management API: it shares its threads with inference and with registrations that wait
# for their workers, and a busy node must not count as dead.
RESPONSE_S = 15.0
# Seconds for a handler's metadata: the request waits in the model's queue, behind the requests of clients.
METADATA_S = 60.0
# Bytes of the longest response: more than a thousand workers, or a model with thousands of labels.
RESPONSE_BYTES = 8 << 20
RAISED = "InternalServerException"  # the `type` of TorchServe's 503 for a batch whose handler raised an exception
CONCURRENCY = 4  # concurrent requests to a node
UNUSABLE = re.compile(r"[/\\\x00-\x1f\x7f]")  # proxies treat a backslash as a slash

Models = Mapping[tuple[str, str], Placement]  # (Model, version) -> placement


class NodeFailed(Exception):
    """A node did not answer as a TorchServe does; the message describes the failure."""


class NodeUnreachable(NodeFailed):
    """No server listens at a node's address, or it closed the connection."""


class NodeDraining(Exception):
    """A node reports that it is about to end."""


async def ask(
    session: aiohttp.ClientSession,
    node: Node,
    path: str,
    *,
    timeout_s: float = RESPONSE_S,
    api: str = "management",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    has_document: bool = True,
) -> tuple[int, Any]:
    """Request a quoted path with its query from an API of a node; return the status and the document, or NodeFailed."""
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
    url = URL(f"{node.management if api == 'management' else node.inference}{path}", encoded=True)
    sent, body = dict(headers or {}), bytearray()
    if node.token_file is not None:
        if (tokens := read_tokens(node.token_file)) is None:
            raise NodeFailed(f"no key in {node.token_file}")
        sent["Authorization"] = f"Bearer {tokens[api]}"
    try:
        async with session.request(method, url, headers=sent, timeout=timeout) as response:
            if not has_document and response.status < 400:
                return response.status, b""
            async for part in response.content.iter_any():
                body += part
                if len(body) > RESPONSE_BYTES:
                    raise NodeFailed(f"{method} {path.partition('?')[0]}: over {RESPONSE_BYTES} bytes")
            return response.status, json.loads(body) if has_document else bytes(body)
    except TimeoutError:
        raise NodeFailed(f"no response in {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NodeUnreachable(f"cannot be reached ({type(error).__name__})") from None
    except ValueError:
        raise NodeFailed(f"{method} {path.partition('?')[0]}: the body is not JSON") from None


def fault(name: str) -> str | None:
    """Return why no URL can contain a name; None if one can."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "contains an invalid Unicode code point"
    if not 0 < size <= NAME_BYTES:
        return f"must have 1 to {NAME_BYTES} bytes in UTF-8"
    if name in (".", "..") or UNUSABLE.search(name):
        return "must not be a dot or two, or contain a slash, a backslash or a control character"
    return None


async def list_models(session: aiohttp.ClientSession, node: Node) -> tuple[Models, dict[str, str]]:
    """Return every version of every model on a node, and the names that no URL can contain, with the reason."""
    requests = asyncio.Semaphore(CONCURRENCY)

    async def describe(name: str) -> dict[tuple[str, str], Placement]:
        async with requests:
            return await _versions(session, node, name)

    names: dict[str, None] = {}
    begin: int | None = 0
    while begin is not None:
        listed = await _get(session, node, f"/models?limit={PAGE_MODELS}&next_page_token={begin}")
        try:
            names |= dict.fromkeys(str(each["modelName"]) for each in listed["models"])
            begin = int(listed["nextPageToken"]) - OVERLAP if "nextPageToken" in listed else None
        except (LookupError, TypeError, ValueError):
            raise NodeFailed("GET /models: the body is not a list of models") from None
    faults = {name: reason for name in names if (reason := fault(name))}
    models: dict[tuple[str, str], Placement] = {}
    for found in await asyncio.gather(*(describe(name) for name in names if name not in faults)):
        models |= found
    faults |= {f"{name} {version}": reason for name, version in models if (reason := fault(version))}
    return {key: placement for key, placement in models.items() if not fault(key[1])}, faults


async def _versions(session: aiohttp.ClientSession, node: Node, name: str) -> dict[tuple[str, str], Placement]:
    """Return every version of a model; none if it was unregistered meanwhile."""
    path = f"/models/{quote(name, safe='')}"
    versions = await _get(session, node, f"{path}/all")
    # Only the response for the model without a version shows which version is the default.
    default = await _get(session, node, path) if isinstance(versions, list) and len(versions) > 1 else None
    if not versions:
        return {}
    try:
        name_of_default = str((default or versions)[0]["modelVersion"])
        return {(name, str(each["modelVersion"])): _read_placement(each, name_of_default) for each in versions}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise NodeFailed(f"GET {path}/all: the body does not describe a model") from None


async def _get(session: aiohttp.ClientSession, node: Node, path: str) -> Any:
    """Return a document of the management API; None for a 404."""
    status, document = await ask(session, node, path)
    if status == 503 and _get_type(document) == DRAINING.type:
        raise NodeDraining
    if status not in (200, 404):
        raise NodeFailed(f"GET {path.partition('?')[0]}: {status}")
    return document if status == 200 else None


def _read_placement(document: Json, default: str) -> Placement:
    """Read TorchServe's description of a version; `default` is the model's default version on that node."""
    workers = document["workers"]
    ready = [worker for worker in workers if worker["status"] == "READY"]
    return Placement(
        workers=int(document["minWorkers"]),
        ready_workers=len(ready),
        batch_size=int(document["batchSize"]),
        max_batch_delay_ms=int(document["maxBatchDelay"]),
        is_default=str(document["modelVersion"]) == default,
        generation=(
            str(document.get("modelUrl")),
            *sorted(f"{worker.get('id')} {worker.get('startTime')}" for worker in ready),
        ),
        # The id of a worker that starts is -1.
        processes={str(worker.get("id")): pid for worker in workers if (pid := int(worker.get("pid") or 0)) > 0},
        queued=int((document.get("jobQueueStatus") or {}).get("pendingRequests") or 0),
    )


async def fetch_metadata(session: aiohttp.ClientSession, node: Node, model: str, version: str) -> Json | None:
    """Ask a version for its inputs and outputs; None from a handler of another project, which rejects the question."""
    path = f"/predictions/{quote(model, safe='')}/{quote(version, safe='')}"
    headers = {METADATA_HEADER: "1"}
    status, document = await ask(session, node, path, timeout_s=METADATA_S, api="inference", headers=headers)
    # TorchServe answers so if a handler raises an exception; other failures may pass.
    is_raised = status == HTTPStatus.SERVICE_UNAVAILABLE and _get_type(document) == RAISED
    if not is_raised and (status >= 500 or status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)):
        raise NodeFailed(str(status))
    return document if status == 200 and _is_metadata(document) else None


async def ask_sample(session: aiohttp.ClientSession, node: Node, model: str, version: str) -> tuple[int, bytes]:
    """Return the status of the answer to a version's own sample, and the body of an error."""
    path, headers = f"/predictions/{quote(model, safe='')}/{quote(version, safe='')}", {METADATA_HEADER: SAMPLE}
    return await ask(session, node, path, timeout_s=ANSWER_S, api="inference", headers=headers, has_document=False)


def _get_type(document: object) -> object:
    return document.get("type") if isinstance(document, dict) else None


def _is_metadata(document: Any) -> bool:
    """Return whether a document contains names, datatypes and shapes of inputs and outputs."""
    try:
        tensors = [*document["inputs"], *document["outputs"]]
        words = [document.get("platform", ""), *(tensor[name] for tensor in tensors for name in ("name", "datatype"))]
        sizes = [size for tensor in tensors for size in tensor["shape"]]
    except (LookupError, TypeError, AttributeError):
        return False
    return all(isinstance(word, str) for word in words) and all(isinstance(size, int) for size in sizes)
