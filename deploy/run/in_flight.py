"""What a TorchServe has in hand: requests that wait, batches that workers have, answers that are on their way out.

    GET /models/M/all        -> pendingRequests: in a model's queue
    a thread dump of Java    -> workers' threads: one that does not wait for a first request has a batch in hand
    /proc/net/tcp            -> bytes of answers that the clients' side has not taken yet
    /metrics                 -> ts_inference_requests_total: whether a request came between two looks

The management API counts no request that a worker has, and an adaptive worker has all of them; no metric counts answers
of predictions alone. Java prints where each of its threads stands when it gets a SIGQUIT, as `jstack` shows it, and
goes on; the dump is in logs/console.log.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from deploy.run.server import Server
from torchserve_client.errors import ManagementError

# What the thread of a worker runs, and not those that read what its process prints.
WORKER = "org.pytorch.serve.wlm.WorkerThread.run("
# Where a worker's thread waits that has nothing in hand, or whose batch is being filled.
IDLE = ("org.pytorch.serve.wlm.Model.pollBatch(", "org.pytorch.serve.wlm.Model.pollInferJob(")
THREAD = re.compile(r'^"(W-(?P<port>\d+)-[^"]+)" .*\n(?P<stack>(?:[ \t].*\n)*)', re.MULTILINE)
# The last thing of a dump.
DUMP_END = "JNI global ref"
DUMP_TIMEOUT_S = 10.0
# Between two looks: longer than a request needs from a client's socket into a queue.
LOOK_S = 0.3
ARRIVALS = "ts_inference_requests_total"
# Of /proc/net/tcp: a connection that both sides hold open, or that ours has begun to close.
OPEN = {"01", "04", "05", "08", "09", "0B"}


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one time.

    Attributes:
        waiting: requests in queues.
        busy: workers with a batch in hand.
        leaving: connections whose answer is not all sent.
        arrived: requests since the server started.
        delay_s: longest time that a batch may be filled, in which its worker seems to have nothing in hand.
        response_timeout_s: longest time that a batch may take.
    """

    waiting: int
    busy: int
    leaving: int
    arrived: float
    delay_s: float
    response_timeout_s: float

    @property
    def is_idle(self) -> bool:
        """Whether nothing was seen."""
        return not (self.waiting or self.busy or self.leaving)


def look(server: Server) -> Look:
    """Look at a running server.

    Raises:
        ManagementError, requests.RequestException, OSError: it does not answer, or is gone.
    """
    management = server.management
    described = [
        management.describe(model, version) for model in management.models() for version in management.versions(model)
    ]
    arrived = _arrived(server)
    waiting = sum(int(each["jobQueueStatus"]["pendingRequests"]) for each in described)
    ready = {f"{worker['id']}" for each in described for worker in each["workers"] if worker["status"] == "READY"}
    return Look(
        waiting=waiting,
        # A dump costs Java some milliseconds, and is not needed to know that it is busy.
        busy=0 if waiting or not ready else busy_workers(dump(server), ready),
        leaving=leaving(server.settings.ports["inference_address"][1]),
        arrived=arrived,
        delay_s=max((float(each["maxBatchDelay"]) / 1000 for each in described), default=0.0),
        response_timeout_s=_longest(described),
    )


def wait_answered(
    server: Server,
    say: Callable[[str], None] = lambda _: None,
    *,
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until a server has answered everything that it was asked.

    Args:
        server: a running one. Whoever still sends to it keeps it busy.
        say: told what is waited for, as it changes.
        timeout_s: most seconds; None for the longest responseTimeout of its models, within which TorchServe has
            answered a batch or ended its worker.
        clock, sleep: a test brings its own.

    Returns:
        Whether nothing was in hand at two looks in a row, between which nothing came. False when the time was up, or
        the server was gone.
    """
    start, last = clock(), None
    said = ""
    while True:
        try:
            seen = look(server)
        except (ManagementError, requests.RequestException, OSError):
            if server.pid() is None:
                return False
            seen = None
        if seen is not None and seen.is_idle and last is not None and last.is_idle and last.arrived == seen.arrived:
            return True
        limit_s = timeout_s if timeout_s is not None else max(seen.response_timeout_s if seen else 0, 1.0)
        if clock() - start > limit_s:
            return False
        if seen is not None and not seen.is_idle and (words := _words(seen, limit_s)) != said:
            say(words)
            said = words
        last = seen
        sleep(max(LOOK_S, 1.5 * seen.delay_s if seen else 0))


def _words(seen: Look, limit_s: float) -> str:
    if seen.waiting:
        return f"{seen.waiting} requests wait; at most {limit_s:g} s"
    return f"{seen.busy + seen.leaving} answers are on their way; at most {limit_s:g} s"


def _longest(described: Iterable[Mapping[str, Any]]) -> float:
    return max((float(each["responseTimeout"]) for each in described), default=1.0)


def _arrived(server: Server) -> float:
    with requests.Session() as session:
        session.trust_env = False
        text = session.get(f"{server.settings.metrics_url}/metrics", timeout=10).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(ARRIVALS))


def dump(server: Server) -> str:
    """Have Java print where its threads stand.

    Raises:
        OSError: it is gone, or prints nothing.
    """
    pid = server.pid()
    if pid is None:
        raise ProcessLookupError("TorchServe is gone")
    start = server.console.stat().st_size
    os.kill(pid, signal.SIGQUIT)
    deadline = time.monotonic() + DUMP_TIMEOUT_S
    while True:
        with server.console.open("rb") as console:
            console.seek(start)
            text = console.read().decode(errors="replace")
        if DUMP_END in text:
            return text
        if time.monotonic() > deadline:
            raise TimeoutError(f"{server.console}: no thread dump after {DUMP_TIMEOUT_S:g} s")
        time.sleep(0.02)


def busy_workers(dump: str, ready: Collection[str]) -> int:
    """Count the workers that have a batch in hand.

    Args:
        dump: of Java's threads.
        ready: ids of the workers that are READY, as the management API has them: "9000". One that starts or has died
            has no request in hand.
    """
    own = [match for match in THREAD.finditer(dump) if WORKER in match["stack"] and match["port"] in ready]
    return sum(not any(place in match["stack"] for place in IDLE) for match in own)


def leaving(port: int, tables: Iterable[Path] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))) -> int:
    """Count connections to a port of this machine that have bytes to send; 0 where the system does not say."""
    found = 0
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, queues, *_ = line.split()
            is_ours = int(local.rpartition(":")[2], 16) == port
            found += is_ours and state in OPEN and int(queues.partition(":")[0], 16) > 0
    return found
