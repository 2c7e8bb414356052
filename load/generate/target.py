"""A target is where requests go: one URL over kept-alive connections.

input -> Target.send -> Exchange (timed; nothing that the network or the server does raises)
"""

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from load.generate.inputs import Input
from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict

# (number of the input, body of its answer) -> the judgement of the answer
Check = Callable[[int, bytes], Verdict]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how bodies are written and read."""

    # Bytes from which on a body is written in pieces, as a file is: aiohttp warns of larger ones written in one go.
    large_body_bytes: int = 1 << 20
    # Bytes that are read at a time: a list of 64 embeddings, 250 KB of JSON, comes in one piece.
    read_buffer_bytes: int = 1 << 18
    # Seconds until a request counts as unanswered: TorchServe's own default of responseTimeout.
    timeout_s: float = 120.0


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Target:
    """One address that predictions are asked of.

    Attributes:
        url: the whole address of the prediction.
        headers: name -> value, sent with every request beside the content type.
        timeout_s: seconds until a request counts as unanswered.
        check: judges the answers that came with 200, by number of the input; None believes them.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TUNING.timeout_s
    check: Check | None = None

    def session(self) -> aiohttp.ClientSession:
        """Open a pool of as many connections as there are requests at once; the caller closes it."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers=self.headers,
            # The server cannot use the time that a request costs here: nothing is kept, unpacked or guessed.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            read_bufsize=TUNING.read_buffer_bytes,
        )

    async def send(
        self,
        session: aiohttp.ClientSession,
        source: int,
        content: Input,
        *,
        client: int = 0,
        due_s: float | None = None,
    ) -> Exchange:
        """Send one request now and read its answer.

        Args:
            session: a pool that `self.session()` opened.
            source: number of the input.
            content: the input.
            client: number of the client that sends it, in a closed loop.
            due_s: when it was to be sent, in seconds of `time.perf_counter`; None means now.
        """
        body = content.body if len(content.body) < TUNING.large_body_bytes else io.BytesIO(content.body)
        answer, error, timing, verdict = b"", None, None, None
        sent_s = time.perf_counter()
        try:
            async with session.post(URL(self.url), data=body, headers={"Content-Type": content.content_type}) as reply:
                answer = await reply.read()
                status = reply.status
                timing = reply.headers.get("Server-Timing")
        except (TimeoutError, aiohttp.ClientError, OSError) as problem:
            status, error = NO_ANSWER, type(problem).__name__
        answered_s = time.perf_counter()
        if status == OK and self.check is not None:
            verdict = self.check(source, answer)
        return Exchange(
            due_s=sent_s if due_s is None else due_s,
            sent_s=sent_s,
            answered_s=answered_s,
            status=status,
            client=client,
            source=source,
            sent_bytes=len(content.body),
            received_bytes=len(answer),
            error=error,
            server_timing=timing,
            verdict=verdict,
        )
