"""One question to a node: its management API, and what its handlers say of themselves.

A node is asked with the key of the API that is asked, which is read anew each time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from deploy.run.node import Node

# Seconds to connect, which takes no work of the node at all.
CONNECT_S = 1.0
# Bytes of the longest answer that is read: a thousand workers, or a model of thousands of labels, say less.
ANSWER_BYTES = 8 << 20


class NodeFailed(Exception):
    """A node did not answer as a TorchServe does; the message says how."""


async def ask(
    session: aiohttp.ClientSession,
    node: Node,
    path: str,
    *,
    timeout_s: float,
    api: str = "management",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Ask a node.

    Args:
        session: of the process.
        node: who is asked.
        path: with its query, quoted: a name may hold what would be taken apart again.
        timeout_s: for the whole answer.
        api: `management` or `inference`.
        method: of HTTP.
        headers: beside the key.

    Returns:
        The status, and the document.

    Raises:
        NodeFailed: it did not answer, or not in JSON; or its file of keys is none.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
    url = URL(f"{node.management if api == 'management' else node.inference}{path}", encoded=True)
    given = {**(headers or {}), **_key(node, api)}
    body = bytearray()
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
        raise NodeFailed(f"cannot be reached ({type(error).__name__})") from None
    except ValueError:
        raise NodeFailed(f"{method} {path.partition('?')[0]}: no JSON") from None


def _key(node: Node, api: str) -> dict[str, str]:
    if node.token_file is None:
        return {}
    try:
        key = json.loads(Path(node.token_file).read_text(encoding="utf-8"))[api]["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NodeFailed(f"no {api} key in {node.token_file} ({type(error).__name__})") from None
    return {"Authorization": f"Bearer {key}"}
