"""Where requests go: one URL over kept-alive connections.

input -> Target.send -> Exchange (timed, never raises for what the network or the server does)
"""

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from load.generate.inputs import Input
from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict

# (number of the input, body of its answer) -> what to think of it
Check = Callable[[int, bytes], Verdict]

# aiohttp warns of larger bodies given as bytes: they are written in one go. As a file they are written in pieces.
LARGE_BODY_BYTES = 1 << 20
READ_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Target:
    """One address.

    Attributes:
        url: of the prediction.
        headers: of every request, beside the content type.
        timeout_s: of a request, then it counts as unanswered.
        check: judges the answers that came with 200, by number of the input; None to believe them.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 120.0
    check: Check | None = None

    def session(self) -> aiohttp.ClientSession:
        """A pool of as many connections as there are requests at once; to be closed by its user."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            headers=self.headers,
            # What a request costs here, the server cannot use: nothing is kept, unpacked or guessed.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            read_bufsize=READ_BUFFER_BYTES,
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
            session: of `self.session()`.
            source: number of the input.
            content: the input.
            client: who sends it, in a closed loop.
            due_s: when it was to be sent; None for now.
        """
        body = content.body if len(content.body) < LARGE_BODY_BYTES else io.BytesIO(content.body)
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
