"""What a node says of itself: its management API, and what its handlers answer.

    GET /models, /models/M/all, /models/M           -> registered -> (model, version) -> Replica
    GET /predictions/M/V with X-Model-Metadata: 1   -> metadata -> {"platform", "inputs", "outputs", ...}

`?customized=true` is never asked for: on an adaptive model that question is never over, and stops the model. A node is
asked with the key of the API that is asked, which is read anew each time.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from deploy.gateway.names import fault
from deploy.gateway.state import Replica
from deploy.run.node import Node
from torchserve_client.management import OVERLAP, PAGE_MODELS

# Seconds to connect, which takes no work of the node at all.
CONNECT_S = 1.0
# Seconds for one answer of the management API: it shares its threads with inference and with registrations that wait
# for their workers, and a node that is only busy is not to be called dead.
ANSWER_S = 15.0
# Seconds for what a handler says of itself: the question stands in the model's queue, behind what clients sent.
METADATA_S = 60.0
# Bytes of the longest answer that is read: a thousand workers, or a model of thousands of labels, say less.
ANSWER_BYTES = 8 << 20
# What a node that is about to end says of itself, in `type` (deploy.container).
DRAINING = "Draining"
# Questions that a node is asked at once.
QUESTIONS = 4

# The model's name and the version -> what there is of it.
Models = Mapping[tuple[str, str], Replica]


class NodeFailed(Exception):
    """A node did not answer as a TorchServe does; the message says how."""


class NodeGone(NodeFailed):
    """Nothing listens at a node's address, or it has closed the connection."""


class NodeDrains(Exception):
    """A node answers, and says that it is about to end."""


async def ask(
    session: aiohttp.ClientSession,
    node: Node,
    path: str,
    *,
    timeout_s: float = ANSWER_S,
    api: str = "management",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Ask an API of a node for a path, quoted and with its query; return the status and the document, or NodeFailed."""
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
    url = URL(f"{node.management if api == 'management' else node.inference}{path}", encoded=True)
    given, body = dict(headers or {}), bytearray()
    if node.token_file is not None:
        if (tokens := tokens_of(node.token_file)) is None:
            raise NodeFailed(f"no key in {node.token_file}")
        given["Authorization"] = f"Bearer {tokens[api]}"
    try:
        async with session.request(method, url, headers=given, timeout=timeout) as answer:
            async for part in answer.content.iter_any():
                body += part
                if len(body) > ANSWER_BYTES:
                    raise NodeFailed(f"{method} {path.partition('?')[0]}: over {ANSWER_BYTES} bytes")
            return answer.status, json.loads(body)
    except TimeoutError:
        raise NodeFailed(f"no answer in {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise NodeGone(f"cannot be reached ({type(error).__name__})") from None
    except ValueError:
        raise NodeFailed(f"{method} {path.partition('?')[0]}: no JSON") from None


def tokens_of(path: str | Path) -> Mapping[str, str] | None:
    """Read the tokens that a TorchServe wrote, by the API that takes each; None of a file that is not whole."""
    try:
        keys = json.loads(Path(path).read_text(encoding="utf-8"))
        return {api: str(keys[api]["key"]) for api in ("inference", "management")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


# -- what is registered -----------------------------------------------------------------------------------------------


async def registered(session: aiohttp.ClientSession, node: Node) -> tuple[Models, dict[str, str]]:
    """Return every version of every model on a node, and what no URL can name with the reason."""
    questions = asyncio.Semaphore(QUESTIONS)

    async def describe(name: str) -> dict[tuple[str, str], Replica]:
        async with questions:
            return await _versions(session, node, name)

    names: dict[str, None] = {}
    begin: int | None = 0
    while begin is not None:
        listed = await _described(session, node, f"/models?limit={PAGE_MODELS}&next_page_token={begin}")
        try:
            names |= dict.fromkeys(str(each["modelName"]) for each in listed["models"])
            begin = int(listed["nextPageToken"]) - OVERLAP if "nextPageToken" in listed else None
        except (LookupError, TypeError, ValueError):
            raise NodeFailed("GET /models: no list of models") from None
    faults = {name: reason for name in names if (reason := fault(name))}
    models: dict[tuple[str, str], Replica] = {}
    for found in await asyncio.gather(*(describe(name) for name in names if name not in faults)):
        models |= found
    faults |= {f"{name} {version}": reason for name, version in models if (reason := fault(version))}
    return {key: replica for key, replica in models.items() if not fault(key[1])}, faults


async def _versions(session: aiohttp.ClientSession, node: Node, name: str) -> dict[tuple[str, str], Replica]:
    """Return every version of a model; none where it has gone meanwhile."""
    path = f"/models/{quote(name, safe='')}"
    versions = await _described(session, node, f"{path}/all")
    # Which version is the default is said by its place alone: that of the question without a version.
    default = await _described(session, node, path) if isinstance(versions, list) and len(versions) > 1 else None
    if not versions:
        return {}
    try:
        of = str((default or versions)[0]["modelVersion"])
        return {(name, str(each["modelVersion"])): _replica(each, of) for each in versions}
    except (LookupError, TypeError, ValueError, AttributeError):
        raise NodeFailed(f"GET {path}/all: no description of a model") from None


async def _described(session: aiohttp.ClientSession, node: Node, path: str) -> Any:
    """Return a document of the management API; None of what is not there."""
    status, document = await ask(session, node, path)
    if status == 503 and isinstance(document, dict) and document.get("type") == DRAINING:
        raise NodeDrains
    if status not in (200, 404):
        raise NodeFailed(f"GET {path.partition('?')[0]}: {status}")
    return document if status == 200 else None


def _replica(described: Mapping[str, Any], default: str) -> Replica:
    """Read a description of TorchServe's; `default` is the model's default version on that node."""
    workers = described["workers"]
    ready = [worker for worker in workers if worker["status"] == "READY"]
    return Replica(
        workers=int(described["minWorkers"]),
        ready_workers=len(ready),
        batch_size=int(described["batchSize"]),
        max_batch_delay_ms=int(described["maxBatchDelay"]),
        is_default=str(described["modelVersion"]) == default,
        generation=(
            str(described.get("modelUrl")),
            *sorted(f"{worker.get('id')} {worker.get('startTime')}" for worker in ready),
        ),
        # A worker that starts has -1.
        processes={str(worker.get("id")): pid for worker in workers if (pid := int(worker.get("pid") or 0)) > 0},
        queued=int((described.get("jobQueueStatus") or {}).get("pendingRequests") or 0),
    )


# -- what a handler says of itself ------------------------------------------------------------------------------------


async def metadata(session: aiohttp.ClientSession, node: Node, model: str, version: str) -> Mapping[str, Any] | None:
    """Ask a version for its inputs and outputs; None of a handler that is not of this project.

    Raises:
        NodeFailed: it does not answer.
    """
    path = f"/predictions/{quote(model, safe='')}/{quote(version, safe='')}"
    headers = {"X-Model-Metadata": "1"}
    status, said = await ask(session, node, path, timeout_s=METADATA_S, api="inference", headers=headers)
    if status >= 500:
        raise NodeFailed(str(status))
    return said if status == 200 and _is_metadata(said) else None


def _is_metadata(document: Any) -> bool:
    """Return whether it says what the gateway reads: names, datatypes and shapes of inputs and outputs."""
    try:
        tensors = [*document["inputs"], *document["outputs"]]
        words = [document.get("platform", ""), *(tensor[name] for tensor in tensors for name in ("name", "datatype"))]
        sizes = [size for tensor in tensors for size in tensor["shape"]]
    except (LookupError, TypeError, AttributeError):
        return False
    return all(isinstance(word, str) for word in words) and all(isinstance(size, int) for size in sizes)
