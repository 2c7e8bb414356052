"""Two clients of the Open Inference Protocol on equal terms: one loop, one body of bytes each, over HTTP and over gRPC.

texts -> http_requests, grpc_requests -> an opened Call each -> closed_loop -> Measured

Neither client makes its requests anew or reads what is answered but for the first: the tensor of texts goes out as
bytes that were written before, and comes back as bytes, so that what differs is the way between them.
"""

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from statistics import median

import grpc.aio

from handlers.protocol.grpc_messages import CLASSES
from load.bench.peers import BenchError, Measured
from load.generate import precise_loop
from load.generate.target import Target
from load.measure.exchange import OK

# Sends the request of this number and returns once it is answered well.
Call = Callable[[int], Awaitable[None]]

METHOD = "/inference.GRPCInferenceService/ModelInfer"
INPUT, OUTPUT = "text", "embedding"
# Seconds until a request counts as unanswered: TorchServe's own default of responseTimeout.
TIMEOUT_S = 120.0
# Bytes to which every JSON head is filled up with blanks: their length is a header, the same for all requests.
HEAD_BYTES = 256


def tensor(texts: Sequence[str]) -> bytes:
    """Write texts as the elements of a BYTES tensor: each after its length, 32 bits, little-endian."""
    encoded = [text.encode() for text in texts]
    return b"".join(struct.pack("<I", len(text)) + text for text in encoded)


def http_requests(texts: Sequence[str]) -> list[bytes]:
    """Write a request of one text each: a JSON head of HEAD_BYTES, then the tensor."""
    bodies = []
    for text in texts:
        data = tensor([text])
        inputs = [
            {"name": INPUT, "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}},
        ]
        outputs = [{"name": OUTPUT, "parameters": {"binary_data": True}}]
        bodies.append(json.dumps({"inputs": inputs, "outputs": outputs}).encode().ljust(HEAD_BYTES) + data)
    return bodies


def grpc_requests(model: str, texts: Sequence[str]) -> list[bytes]:
    """Write a ModelInferRequest of one text each, with raw contents."""
    requests = []
    for text in texts:
        request = CLASSES["ModelInferRequest"](model_name=model, raw_input_contents=[tensor([text])])
        request.inputs.add(name=INPUT, datatype="BYTES", shape=[1, 1])
        request.outputs.add(name=OUTPUT)
        requests.append(request.SerializeToString())
    return requests


@asynccontextmanager
async def http_call(address: str, model: str, bodies: Sequence[bytes]) -> AsyncIterator[Call]:
    """Open a pool of connections.

    Args:
        address: http://HOST:PORT of the gateway.
        model: the model's name.
        bodies: what `http_requests` wrote.
    """
    url = f"{address}/v2/models/{model}/infer"
    headers = {"Inference-Header-Content-Length": str(HEAD_BYTES), "Content-Type": "application/octet-stream"}
    async with Target(url, headers, TIMEOUT_S).session() as session:

        async def call(number: int) -> None:
            async with session.post(url, data=bodies[number % len(bodies)]) as reply:
                answer = await reply.read()
                if reply.status != OK:
                    raise BenchError(f"{model} answered {reply.status} over HTTP: {answer[:200]!r}")

        yield call


@asynccontextmanager
async def grpc_call(address: str, requests: Sequence[bytes]) -> AsyncIterator[Call]:
    """Open a channel, which all calls share as Triton's client has it.

    Args:
        address: HOST:PORT of the gateway.
        requests: what `grpc_requests` wrote.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(METHOD)

        async def call(number: int) -> None:
            try:
                await infer(requests[number % len(requests)], timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                raise BenchError(f"answered {error.code().name} over gRPC: {error.details()}") from None

        yield call


def measure(opened: AbstractAsyncContextManager[Call], clients: int, duration_s: float, warm_up_s: float) -> Measured:
    """Keep a number of requests going, and count what is answered within the window after a warm-up.

    Args:
        opened: a client that is not opened yet.
        clients: number of requests at a time.
        duration_s: length of the window, in seconds.
        warm_up_s: seconds under load before it.

    Raises:
        BenchError: a request was not answered well.
    """
    return precise_loop.run(_measure(opened, clients, duration_s, warm_up_s))


async def _measure(
    opened: AbstractAsyncContextManager[Call], clients: int, duration_s: float, warm_up_s: float
) -> Measured:
    async with opened as call:
        opens_s = time.perf_counter() + warm_up_s
        closes_s = opens_s + duration_s
        latencies_s: list[float] = []

        async def client(number: int) -> None:
            while (sent_s := time.perf_counter()) < closes_s:
                await call(number)
                answered_s = time.perf_counter()
                if opens_s <= answered_s < closes_s:
                    latencies_s.append(answered_s - sent_s)
                number += clients

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(number))
    if not latencies_s:
        raise BenchError(f"none of {clients} clients was answered within {duration_s:g} s")
    return Measured(len(latencies_s) / duration_s, median(latencies_s), {})
