"""Clients that misbehave, beside those that do not: a bounded number of each kind, over sockets of their own.

interrupted   sends a whole request, and closes its connection while it waits for the answer
half-sent     announces a body, sends half of it, and closes
stalled       announces a body, sends half of it, and holds the connection
slow reader   asks for a list whose answer is large, and reads it a little at a time; the answer is held against the
              canaries, and entered in the ledger as anybody's

Only slow readers have an answer to expect.
"""

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from load.generate.inputs import Input
from load.generate.target import Target
from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict
from load.soak.canaries import Canaries, Canary
from load.soak.ledger import Ledger
from load.soak.models import Subject


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how often clients misbehave: a few in a hundred requests, so that the mix stays what it is."""

    # Seconds between two clients of a kind, on average, and how many of it there are at once.
    interrupted_every_s: float = 0.5
    half_sent_every_s: float = 0.5
    stalled_every_s: float = 5.0
    slow_every_s: float = 3.0
    at_once: int = 4
    # Seconds after which an interrupted client goes: from before its request is read to after its answer is sent.
    longest_wait_s: float = 0.1
    # Seconds that a stalled client holds its connection.
    stall_s: float = 20.0
    # Items of a slow reader's list: 270 KB of embeddings.
    items: int = 64
    # Bytes of the slow reader's receive buffer. An error of 64 items has 8 KB and must fit: TorchServe resets the
    # connection right after an answer of status 400 or more, and what the client's window had no room for is lost.
    buffer_bytes: int = 32768
    # Bytes of one read, and seconds between two reads: some 80 KB/s.
    read_bytes: int = 4096
    pause_s: float = 0.05


TUNING = Tuning()
JSON = "application/json"
HEAD_END = b"\r\n\r\n"


class Misbehaviour:
    """Every such client of a run."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        targets: dict[str, Target],
        canaries: Canaries,
        ledger: Ledger,
        seed: int,
    ) -> None:
        """Describe them; the arguments are those of Traffic."""
        self.counts: Counter[str] = Counter()
        self._subjects = subjects
        self._targets = targets
        self._canaries = canaries
        self._ledger = ledger
        self._chance = random.Random(f"misbehaviour/{seed}")

    async def go_on(self, is_over: asyncio.Event) -> None:
        """Misbehave until it is over, and wait for the last slow reader."""
        await asyncio.gather(
            self._again("interrupted", TUNING.interrupted_every_s, self._interrupted, is_over),
            self._again("half-sent", TUNING.half_sent_every_s, self._half_sent, is_over),
            self._again("stalled", TUNING.stalled_every_s, lambda: self._stalled(is_over), is_over),
            self._again("slow reader", TUNING.slow_every_s, self._slow_reader, is_over),
        )

    async def _again(
        self, kind: str, every_s: float, client: Callable[[], Awaitable[None]], is_over: asyncio.Event
    ) -> None:
        async def counted() -> None:
            self.counts[kind] += 1
            try:
                await client()
            except OSError:
                # The server may well close on such a client, and nobody waits for an answer.
                self.counts[f"{kind}, closed by the server"] += 1

        under_way: set[asyncio.Task[None]] = set()
        try:
            while not await _passed(is_over, self._chance.expovariate(1 / every_s)):
                if len(under_way) < TUNING.at_once:
                    task = asyncio.create_task(counted())
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            if under_way:
                await asyncio.wait(under_way)
        finally:
            for task in under_way:
                task.cancel()

    def _any(self) -> tuple[Target, Input]:
        subject = self._chance.choice(self._subjects)
        return self._targets[subject.name], self._chance.choice(self._canaries.by_model[subject.name]).content

    async def _interrupted(self) -> None:
        target, content = self._any()
        async with _Connection(target) as connection:
            await connection.send(content, len(content.body))
            await asyncio.sleep(self._chance.uniform(0, TUNING.longest_wait_s))
            if self._chance.random() < 0.5:
                connection.reset_at_end()

    async def _half_sent(self) -> None:
        target, content = self._any()
        async with _Connection(target) as connection:
            await connection.send(content, len(content.body) // 2)

    async def _stalled(self, is_over: asyncio.Event) -> None:
        target, content = self._any()
        async with _Connection(target) as connection:
            await connection.send(content, len(content.body) // 2)
            await _passed(is_over, TUNING.stall_s)

    async def _slow_reader(self) -> None:
        named = [subject for subject in self._subjects if subject.task == "sentence_embedding"]
        if not named:
            return
        model = self._chance.choice(named).name
        sources = self._chance.choices(range(len(self._canaries.by_model[model])), k=TUNING.items)
        target = self._targets[model]
        content = _list([self._canaries.by_model[model][source] for source in sources])
        phase, sent_s = self._ledger.sent(model), time.perf_counter()
        error, verdict = None, None
        try:
            async with asyncio.timeout(target.timeout_s), _Connection(target, TUNING.buffer_bytes) as connection:
                await connection.send(content, len(content.body))
                answer = await connection.read_slowly()
        except (OSError, ValueError) as problem:
            answer = _Answer(NO_ANSWER, time.perf_counter(), b"")
            error = f"slow reader, {type(problem).__name__}"
        if answer.status == OK:
            verdict = self._verdict(model, sources, answer.body)
        times = (sent_s, sent_s, answer.answered_s)
        self._ledger.ended(
            model, phase, Exchange(*times, answer.status, source=sources[0], error=error, verdict=verdict)
        )

    def _verdict(self, model: str, sources: Sequence[int], body: bytes) -> Verdict:
        """Judge a list by the worst of its items."""
        try:
            predictions: list[Any] = json.loads(body)["predictions"]
        except (ValueError, KeyError, TypeError):
            return Verdict.WRONG
        if len(predictions) != len(sources):
            return Verdict.WRONG
        verdicts = {
            self._canaries.judge(model, source, prediction)
            for source, prediction in zip(sources, predictions, strict=True)
        }
        return next((each for each in (Verdict.SWAPPED, Verdict.WRONG) if each in verdicts), Verdict.RIGHT)


def _list(canaries: Sequence[Canary]) -> Input:
    return Input(json.dumps({"instances": [json.loads(canary.content.body) for canary in canaries]}).encode(), JSON)


async def _passed(is_over: asyncio.Event, seconds: float) -> bool:
    """Wait for so long, or until it is over; returns whether it is."""
    try:
        async with asyncio.timeout(seconds):
            await is_over.wait()
    except TimeoutError:
        return False
    return True


class _Connection:
    """One connection, over which one request goes, whole or not; nothing is read that was not asked for."""

    def __init__(self, target: Target, buffer_bytes: int | None = None) -> None:
        self._url = urlsplit(target.url)
        self._socket = socket.socket()
        self._socket.setblocking(False)
        if buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)

    async def __aenter__(self) -> "_Connection":
        try:
            await asyncio.get_running_loop().sock_connect(self._socket, (self._url.hostname, self._url.port))
        except BaseException:
            self._socket.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._socket.close()

    def reset_at_end(self) -> None:
        """Close with a reset, without the end that TCP has for a connection whose client is done."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def send(self, content: Input, sent_bytes: int) -> None:
        """Send the head, which announces the whole body, and so many bytes of it."""
        head = (
            f"POST {self._url.path} HTTP/1.1\r\nHost: {self._url.netloc}\r\nContent-Type: {content.content_type}\r\n"
            f"Content-Length: {len(content.body)}\r\n\r\n"
        )
        await asyncio.get_running_loop().sock_sendall(self._socket, head.encode() + content.body[:sent_bytes])

    async def read_slowly(self) -> "_Answer":
        """Read an answer, a little at a time.

        Raises:
            OSError: the connection ended before the answer did.
            ValueError: what came is no answer of a known length.
        """
        data, first_s, length = b"", 0.0, None
        while length is None or len(data) < length:
            piece = await asyncio.get_running_loop().sock_recv(self._socket, TUNING.read_bytes)
            if not piece:
                raise ConnectionError
            first_s = first_s or time.perf_counter()
            data += piece
            if length is None and (end := data.find(HEAD_END)) >= 0:
                head = data[:end].decode("latin-1").lower()
                body_at = end + len(HEAD_END)
                length = body_at + int(head.partition("content-length:")[2].split("\r\n", 1)[0])
            await asyncio.sleep(TUNING.pause_s)
        return _Answer(int(head.split(maxsplit=2)[1]), first_s, data[body_at:])


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer that was read slowly.

    Attributes:
        status: HTTP status.
        answered_s: when its first byte was there: what comes after that is the client's own slowness.
        body: its bytes.
    """

    status: int
    answered_s: float
    body: bytes
