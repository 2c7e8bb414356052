"""One archive: requests go to the scheduler of its core, without exchanges, window or re-sending.

headers, body -> row -> core.pipeline.unpack -> core.submit -> await -> write -> Answer
the client disconnects: the server cancels the task -> core.cancel: its waiting items never run
"""

import asyncio
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

from deploy.frontend.http import Answer, off_loop
from deploy.loader import LoadedArchive, check_release

OUT_OF_MEMORY = 507
# JPEG, PNG, GIF and WebP: only the decode threads read such a body, so unpacking it takes no time.
IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")
LOOP_S = 0.02  # seconds of the loop's micro-batches in a row; beyond, the threads run the next ones, for so long that
LOOP_SHARE = 0.01  # such rows take this share of the loop's time
SAMPLE_S = 20.0  # seconds in which the model's own sample must be answered


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
            self[name] = self._make(name, ("ModelName", "ModelVersion", *own))
        return self[name]

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Discard what the loader and the handler of a stock archive report."""
        if not name.startswith(("add_", "set_")):
            raise AttributeError(name)
        return lambda *_values, **_more: None


class Replica:
    """One archive and its core, for one event loop."""

    def __init__(self, archive: str, *, threads: int, gpu: int | None, metrics: Any) -> None:
        """Load the archive; see `LoadedArchive`."""
        # Ray sets it to the processors of the replica; `threads` are the archive's own setting.
        os.environ.pop("OMP_NUM_THREADS", None)
        check_release(Path(archive))
        loaded = LoadedArchive(Path(archive), "adaptive", threads=threads, gpu=gpu, metrics=metrics)
        self.name, self.version, self._loaded = loaded.name, loaded.version, loaded
        self._handler, self._core = loaded.handler, loaded.handler.core
        #: The most bytes of a body; one byte more is enough to refuse it.
        self.max_body_bytes: int = self._handler.config.max_body_bytes
        #: Whether a GPU computes, and the requests of a full micro-batch.
        self.is_on_gpu, self.window = gpu is not None, self._handler.config.max_batch_items
        self.metadata = self._handler.metadata
        self._is_doubtful = False
        self._is_helping = False  # whether the loop is about to run a micro-batch
        self._threads_until_s = 0.0  # when the loop may run micro-batches again
        # Of the archive's own package, which is on the path now.
        from handlers.batching import guard  # noqa: PLC0415
        from handlers.continuous.timing import QUICK_S  # noqa: PLC0415

        self._guard, self._quick_s = guard, QUICK_S

    def is_version(self, version: str) -> bool:
        """Whether a request's version is the archive's; it may be "1" for "1.0", as in the gateway."""
        from deploy.protocol.description import strip_zeros  # noqa: PLC0415

        return not version or strip_zeros(version) == strip_zeros(self.version or "")

    async def answer(self, version: str, headers: Mapping[str, str], body: bytes, path: str) -> Answer | None:
        """Answer a request of `routes`; None if the archive is not of that version."""
        return await self.predict(headers, body, path) if self.is_version(version) else None

    async def predict(self, headers: Mapping[str, str], body: bytes, path: str = "") -> Answer:
        """Answer one request; see `row_of`."""
        is_image = body.startswith(IMAGES) and "form" not in headers.get("content-type", "")
        return await self._run(await off_loop(0 if is_image else len(body), self._unpack, headers, body, path))

    def _unpack(self, headers: Mapping[str, str], body: bytes, path: str) -> Any:
        from deploy.frontend.forms import MalformedForm, row_of  # noqa: PLC0415

        try:
            return self._core.pipeline.unpack(*row_of(headers, body, self.max_body_bytes, path))
        except MalformedForm as error:
            from handlers.errors import ItemError  # noqa: PLC0415

            return self._request(ItemError(400, MalformedForm.__name__, str(error)))

    async def check(self) -> None:
        """Check that the replica can serve. An engine that is stuck ends the process (handlers.batching.guard)."""
        if self._is_doubtful and (sample := self._handler.sample()) is not None:
            answer = await asyncio.wait_for(self._run(self._request(sample)), SAMPLE_S)
            if answer.status == OUT_OF_MEMORY:
                raise Unhealthy(f"{self.name}: no memory for the model's own sample; expected it to run")
            self._is_doubtful = False

    async def time_sample(self) -> tuple[float, float]:
        """Return seconds of Python, and of cores in other code, for the model's own sample; (0, 1) without one."""
        if (sample := self._handler.sample()) is None:
            return 0.0, 1.0
        began_s = time.perf_counter()
        answer = await self._run(self._request(sample))
        taken_s = time.perf_counter() - began_s
        parts = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers.get("Server-Timing", "")))
        threads = self._handler.config.threads or len(os.sched_getaffinity(0))
        decode_s, forward_s = (float(parts.get(name, 0)) / 1000 for name in ("decode", "forward"))
        return max(0.0, taken_s - decode_s - forward_s), decode_s + forward_s * threads

    async def close(self) -> None:
        """End the core's threads, and report the last metrics."""
        await asyncio.to_thread(self._core.close)
        await asyncio.to_thread(self._handler.reporter.stop)

    def _request(self, content: Any) -> Any:
        """Return a request of one payload or error."""
        from handlers.protocol.requests import Request, Slot  # noqa: PLC0415

        return Request((), slots=[Slot(content)], arrived_s=time.perf_counter())

    async def _run(self, request: Any) -> Answer:
        (future,) = self._core.submit_all([request])
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
            self._core.cancel(request)
            raise
        except CancelledError:
            raise asyncio.CancelledError from None
        self._is_doubtful |= reply.status == OUT_OF_MEMORY
        return Answer(reply.status, reply.body, reply.content_type, dict(reply.headers))

    def _help(self) -> None:
        """Run the items on the loop if they are quick, since waking a thread takes as long; else wake the threads."""
        self._is_helping, core, began_s = False, self._core, time.perf_counter()
        is_loops = began_s > self._threads_until_s
        with self._guard.watch(), core.lock:
            while core.help(len(core.pending) if is_loops and core.scheduler.ready_s <= self._quick_s else 0):
                # A prediction was wrong, and the next may be, too: other requests wait for the loop.
                taken_s = time.perf_counter() - began_s
                if taken_s > LOOP_S:
                    is_loops, self._threads_until_s = False, began_s + taken_s / LOOP_SHARE


def _end(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
