"""One archive: requests go to the scheduler of its core, without exchanges, window or re-sending.

headers, body -> row -> core.unpack -> core.submit -> await -> write -> Response
the client disconnects: the server cancels the task -> core.cancel: its waiting items never run
"""

import asyncio
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

from deploy.hosts.frontend.http import Response, off_loop
from deploy.loader import LoadedArchive, check_format

OUT_OF_MEMORY = 507
# JPEG, PNG, GIF and WebP: only the decode threads read such a body, so unpacking it takes no time.
IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")
QUICK_S = 0.003  # most seconds of the items that the loop runs itself: waking a thread takes as long
LOOP_S = 0.02  # seconds of the loop's micro-batches in a row; beyond, the threads run the next ones, for so long that
LOOP_SHARE = 0.01  # such rows take this share of the loop's time
SHOWN = 200  # most characters of a sample in a command that is printed
SAMPLE_S = 20.0  # seconds in which the model's own sample must be answered

Arrival = tuple[Any, float]  # a request of the archive's core, and when it reached the server


class Unhealthy(Exception):
    """The replica cannot serve; its server replaces it."""


class Metrics(dict[str, Any]):
    """A handler's counters; it has the interface of TorchServe's metrics cache."""

    def __init__(self, make: Callable[[str, tuple[str, ...]], Any]) -> None:
        """`make` returns the counter of a name and labels; its `add_or_update(value, labels)` adds to a sample."""
        super().__init__()
        self._make = make

    def get_metric(self, name: str, kind: object) -> Any:  # noqa: ARG002
        if name not in self:
            from handlers.metrics import COUNTERS  # noqa: PLC0415

            (own,) = {counter.labels for counter in COUNTERS if counter.name == name}
            # The models of a process report on several threads: the first counter stays.
            self.setdefault(name, self._make(name, ("ModelName", "ModelVersion", *own)))
        return self[name]

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Discard what the loader and the handler of a stock archive report."""
        if not name.startswith(("add_", "set_")):
            raise AttributeError(name)
        return lambda *_values, **_more: None


class Replica:
    """One archive and its core, for one event loop."""

    def __init__(self, archive: str, *, threads: int, gpu: int | None, metrics: object) -> None:
        """Load the archive; see `LoadedArchive`."""
        # Ray sets it to the processors of the replica; `threads` are the archive's own setting.
        os.environ.pop("OMP_NUM_THREADS", None)
        check_format(Path(archive))
        loaded = LoadedArchive(Path(archive), "adaptive", threads=threads, gpu=gpu, metrics=metrics)
        # It imports `handlers`, which is the archive's own now.
        from deploy.hosts.frontend import forms  # noqa: PLC0415

        self.name, self.version, self._loaded, self._forms = loaded.name, loaded.version, loaded, forms
        self._handler, self._core = loaded.handler, loaded.handler.service.core
        #: The most bytes of a body; one byte more is enough to reject it.
        self.max_body_bytes: int = self._handler.config.max_body_bytes
        #: Whether a GPU computes, and the requests of a full micro-batch.
        self.is_on_gpu, self.window = gpu is not None, self._handler.config.max_batch_items
        self.metadata = self._handler.archive.metadata
        self._is_doubtful = False
        self._is_helping = False  # whether the loop is about to run a micro-batch
        self._threads_until_s = 0.0  # when the loop may run micro-batches again
        self._in_flight = 0

    def is_version(self, version: str) -> bool:
        """Whether a request's version is the archive's; it may be "1" for "1.0", as in the gateway."""
        if not version:
            return True
        from deploy.protocol.description import strip_zeros  # noqa: PLC0415

        return strip_zeros(version) == strip_zeros(self.version or "")

    async def answer(self, version: str, headers: Mapping[str, str], body: bytes, path: str) -> Response | None:
        """Answer a request of `routes`; None if the archive is not of that version."""
        return await self.predict(headers, body, path) if self.is_version(version) else None

    async def predict(self, headers: Mapping[str, str], body: bytes, path: str = "") -> Response:
        """Answer one request; see `row_of`."""
        is_image = body.startswith(IMAGES) and "form" not in headers.get("content-type", "")
        return await self._run(await off_loop(0 if is_image else len(body), self._unpack, headers, body, path))

    def _unpack(self, headers: Mapping[str, str], body: bytes, path: str) -> Arrival:
        arrived_s, forms = time.perf_counter(), self._forms
        try:
            return self._core.unpack(*forms.row_of(headers, body, self.max_body_bytes, path)), arrived_s
        except forms.MalformedForm as error:
            from handlers.errors import ItemError  # noqa: PLC0415

            return _request(ItemError(400, forms.MalformedForm.__name__, str(error))), arrived_s

    async def check(self) -> None:
        """Check that the replica can serve. An engine that is stuck ends the process (handlers.batching.guard)."""
        if self._is_doubtful and (answer := await asyncio.wait_for(self._answer_sample(), SAMPLE_S)):
            if answer.status == OUT_OF_MEMORY:
                raise Unhealthy(f"{self.name}: no memory for the model's own sample; expected it to run")
            self._is_doubtful = False

    async def time_sample(self) -> tuple[float, float]:
        """Return seconds of Python, and of cores in other code, for the model's own sample; (0, 1) without one."""
        began_s = time.perf_counter()
        if (answer := await self._answer_sample()) is None:
            return 0.0, 1.0
        taken_s = time.perf_counter() - began_s
        parts = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers.get("Server-Timing", "")))
        threads = self._handler.config.threads or len(os.sched_getaffinity(0))
        decode_s, forward_s = (float(parts.get(name, 0)) / 1000 for name in ("decode", "forward"))
        return max(0.0, taken_s - decode_s - forward_s), decode_s + forward_s * threads

    async def _answer_sample(self) -> Response | None:
        """Answer the model's own sample; None without one."""
        from handlers.pipeline.task import samples_of  # noqa: PLC0415

        samples = samples_of(self._handler)
        return await self._run((_request(samples[0]), time.perf_counter())) if samples else None

    def sample_options(self) -> str:
        """Return curl's options that send the model's own sample."""
        from handlers.pipeline.task import samples_of  # noqa: PLC0415

        samples = samples_of(self._handler)
        return curl_options(samples[0].value if samples else None)

    async def close(self) -> None:
        """End the core's threads, and report the last metrics."""
        await asyncio.to_thread(self._core.close)
        await asyncio.to_thread(self._handler.service.reporter.stop)

    def unload(self) -> None:
        """Let go of the archive and its model, which is closed."""
        self._loaded.close()
        del self._handler, self._core

    async def _run(self, arrival: Arrival) -> Response:
        (future,) = self._core.submit([arrival])
        del arrival  # its body
        self._in_flight += 1
        try:
            if not future.done():
                loop, thread = asyncio.get_running_loop(), get_ident()
                if not self._is_helping:
                    self._is_helping = True
                    loop.call_soon(self._help)
                waiter: asyncio.Future[None] = loop.create_future()
                # The loop's own thread runs quick items; for another one, uvloop wakes once for a whole micro-batch.
                end = partial(loop.call_soon_threadsafe, _end, waiter)
                future.add_done_callback(lambda _: _end(waiter) if get_ident() == thread else end())
                await waiter
            reply = future.result()()
        except asyncio.CancelledError:
            self._core.cancel(future)
            raise
        except CancelledError:
            raise asyncio.CancelledError from None
        finally:
            self._in_flight -= 1
        self._is_doubtful |= reply.status == OUT_OF_MEMORY
        return Response(reply.status, reply.body, reply.content_type, dict(reply.headers))

    def _help(self) -> None:
        """Run the items on the loop if they are quick, since waking a thread takes as long; else wake the threads."""
        self._is_helping, began_s = False, time.perf_counter()
        while self._core.step(self._most_items):
            # A prediction was wrong, and the next may be, too: other requests wait for the loop.
            taken_s = time.perf_counter() - began_s
            if taken_s > LOOP_S:
                self._threads_until_s = began_s + taken_s / LOOP_SHARE

    def _most_items(self, ready_s: float) -> int:
        is_loops = ready_s <= QUICK_S and time.perf_counter() > self._threads_until_s
        return self._in_flight if is_loops else 0


def curl_options(value: object) -> str:
    """Return curl's options that send a short value; the user has a better image, and no array is shown."""
    if isinstance(value, str) and len(value) <= SHOWN:
        return f"-H 'Content-Type: text/plain' -d {shlex.quote(value)}"
    with suppress(TypeError, ValueError):
        text = json.dumps({**value}, ensure_ascii=False) if isinstance(value, Mapping) else ""
        if 0 < len(text) <= SHOWN:
            return f"-H 'Content-Type: application/json' -d {shlex.quote(text)}"
    return "-T FILE"


def _request(content: Any) -> Any:
    """Return a request of one payload or error."""
    from handlers.protocol.requests import Request  # noqa: PLC0415

    return Request((content,))


def _end(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
