"""Each process of two nodes behind a gateway is killed, hangs, has no memory or a full disk, under 60 % of the load.

    Poisson arrivals -> Envoy -> two TorchServes with mobilenet-v2, as `make serve NODES=2` and `make gateway` have them

The gateway's own supervisor restarts a process. Every answer is compared with its photograph's. A table of
what clients saw is printed; docs/how-to/production.md has one. The disks are small tmpfs, so this needs root.
Then operators' drills, which end nothing: disks that are full or read-only, kills at any start of the gateway.
"""

import asyncio
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from deploy.gateway.supervisor import HANG_S as UNRESPONSIVE_S
from deploy.models import ROOT
from deploy.nodes.run.lifecycle import start_node
from load import expect
from load.generate import Attack, OpenLoop, Target, run
from load.inputs import Inputs
from load.results import NO_ANSWER, Recording, Summary, Verdict
from load.schedules import Poisson
from tests.e2e.clients import capacity_per_s
from tests.e2e.conftest import MOBILENET
from tests.e2e.machine import BODIES, QUEUE, READY_S, SHARE, Machine, control_of
from tests.waiting import until
from torchserve_client.errors import Unreachable

# Requests of a batch, and workers: the same on every node.
REGISTRATION = {"batch_size": 8, "max_batch_delay_ms": 5, "workers": 1}
DISK_MIB = 256
# Seconds that a process hangs, and has no memory or disk.
HANG_S, SHORT_S = 30.0, 10.0
# Longest time without any answer, where the process at fault is not on the way of every request.
GAP_S = 15.0
# When a process that starts is killed; seconds in which supervisors look a few times.
MOMENTS_S, LOOKS_S = (0.4, 1.0, 1.8), 3.0


class Fleet(Machine):
    rate_per_s = 0.0
    answers: tuple[object, ...] = ()

    def process(self, name: str) -> psutil.Process:
        """Find a process by what it is; worker and Java are those of the first node."""
        if name == "envoy":
            return psutil.Process(int((self.gateway.state_dir / "envoy.pid").read_text()))
        if name == "control":
            return next(each for each in [control_of(self.gateway)] if each is not None)
        java = psutil.Process(self.nodes[0].server.pid() or 0)
        if name == "java":
            return java
        return next(each for each in java.children() if "model_service_worker" in " ".join(each.cmdline()))


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture(scope="module")
def fleet(model_store: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        # A short path: workers have sockets in it.
        folder = Path(tempfile.mkdtemp(prefix="modes-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for disk in ("nodes", "gateway"):
            stack.enter_context(small_disk(folder / disk))
        made = Fleet(folder, model_store / f"{MOBILENET}.mar", MOBILENET, QUEUE, limits={"unresponsive_s": 10.0})
        for node in made.nodes:
            stack.callback(node.server.stop)
            start_node(node)
            node.server.register(MOBILENET, f"{MOBILENET}.mar", **REGISTRATION)
        stack.callback(made.gateway.command, "stop")
        made.command("start")
        made.wait_ready()
        made.answers = tuple(requests.post(made.url, data=body, timeout=READY_S).json() for body in BODIES)
        made.rate_per_s = SHARE * capacity_per_s(made.url, BODIES)
        print("\n| failure | clients saw | crossed | longest without an answer | slowest answer |")
        yield made


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the disk of a folder; logs grow meanwhile, so this writes until nothing is free."""
    filler = folder.parent / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    try:
        assert shutil.disk_usage(folder).free == 0
        yield
    finally:
        filler.unlink()


def killed(fleet: Fleet, name: str) -> None:
    fleet.process(name).kill()
    time.sleep(1)


def hanging(fleet: Fleet, name: str) -> None:
    process = fleet.process(name)
    process.send_signal(signal.SIGSTOP)
    time.sleep(HANG_S)
    # One that its supervisor has ended is gone.
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def without_memory(fleet: Fleet, name: str) -> None:
    """Let a process have no more of it than it has: what the kernel's killer does is a kill -9."""
    process = fleet.process(name)
    before = resource.prlimit(process.pid, resource.RLIMIT_AS)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (process.memory_info().vms, before[1]))
    time.sleep(SHORT_S)
    with suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_AS, before)


def with_full_disk(fleet: Fleet, name: str) -> None:
    with full(fleet.gateway.state_dir if name in ("envoy", "control") else fleet.nodes[0].folder):
        time.sleep(SHORT_S)


FAILURES: dict[str, Callable[[Fleet, str], None]] = {
    "killed": killed,
    "hangs for 30 s": hanging,
    "has no memory": without_memory,
    "has a full disk": with_full_disk,
}
# The statuses that a client sees if Envoy ends.
CUT = {"ServerDisconnectedError", "ClientOSError", "ClientConnectorError", "ConnectionResetError"}
# Share of the requests that one of two workers may have had in hand as it died, of a load of some seconds.
MOST_FAILED = 0.1


def observed(fleet: Fleet, what: str, event: Callable[[], None]) -> Summary:
    """Load the gateway during an event and for two seconds before and after; no client gets another's answer."""
    recording, is_over = Recording(), threading.Event()

    async def window(_: Recording) -> None:
        while not is_over.is_set():
            await asyncio.sleep(0.1)

    attack = Attack(
        Target(fleet.url),
        Inputs.of(BODIES, "image/png"),
        OpenLoop(Poisson(fleet.rate_per_s, 0)),
        until=window,
        check=expect.make_check(fleet.answers),
    )
    load = threading.Thread(target=lambda: run(attack.generate(recording)))
    load.start()
    try:
        time.sleep(2)
        event()
        fleet.wait_ready()
        time.sleep(2)
    finally:
        is_over.set()
        load.join(READY_S)
    summary = attack.summarise(recording)
    crossed = sum(count for verdict, count in summary.verdicts.items() if verdict is not Verdict.RIGHT)
    came = sorted(each.answered_s for each in recording.exchanges if each.is_good)
    gap_s = max(later - earlier for earlier, later in pairwise(came))
    seen = ", ".join(f"{count} x {status or 'no answer'}" for status, count in summary.statuses.items())
    slowest_s = summary.latency_ms(100) / 1e3
    print(f"\n| {what} | {seen} | {crossed} | {gap_s:.1f} s | {slowest_s:.1f} s |", flush=True)
    assert crossed == 0
    assert gap_s < (HANG_S if what.startswith("envoy hangs") else 0.0) + GAP_S
    return summary


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("name", ["worker", "java", "envoy", "control"])
def test_failure_of_a_process_leaves_no_request_unanswered_and_crosses_none(
    fleet: Fleet, name: str, failure: str
) -> None:
    summary = observed(fleet, f"{name} {failure}", lambda: FAILURES[failure](fleet, name))
    statuses = set(summary.statuses)
    if name == "envoy" and failure in ("killed", "has no memory"):
        # A client's connection ends, and then no process listens on the port.
        assert statuses <= {200, NO_ANSWER}
        assert {*summary.errors} <= CUT
    elif name == "worker":
        # The worker's requests; none is sent again, since it may have caused the failure.
        assert statuses <= {200, 500, 503, 507}
        assert sum(summary.failures.values()) <= MOST_FAILED * summary.requests
    else:
        assert statuses == {200}, (summary.statuses, summary.errors)
    if failure == "killed":
        for node in fleet.nodes:
            # The gateway is ready with the other node, before this one is again.
            until(partial(is_answering, node), READY_S)
            described = node.server.management.describe(MOBILENET)
            assert len([*(node.server.temporary / "models").iterdir()]) == 1
            assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (8, 5, 1)


def is_answering(node: Any) -> bool:
    with suppress(Unreachable):
        return bool(node.server.management.describe(MOBILENET))
    return False


def folder_is_read_only(fleet: Fleet) -> None:
    folder = fleet.gateway.state_dir.parent
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    time.sleep(UNRESPONSIVE_S + LOOKS_S)
    subprocess.run(["umount", "-l", folder], check=True)


def killed_while_the_disk_is_full(fleet: Fleet) -> None:
    with full(fleet.gateway.state_dir):
        for name in ("control", "envoy"):
            before = fleet.process(name)
            before.kill()

            def is_new(name: str = name, pid: int = before.pid) -> bool:
                with suppress(psutil.Error, StopIteration, ValueError):
                    return fleet.process(name).pid != pid
                return False

            until(is_new, READY_S)
        fleet.wait_ready()


@pytest.mark.parametrize(
    ("drill", "statuses", "replaced"),
    [
        (folder_is_read_only, {200}, set()),
        (killed_while_the_disk_is_full, {200, NO_ANSWER}, {"envoy", "control"}),
    ],
)
def test_drill_ends_nothing(
    fleet: Fleet, drill: Callable[[Fleet], None], statuses: set[int], replaced: set[str]
) -> None:
    before = {name: fleet.process(name).pid for name in ("envoy", "control", "java")}
    assert set(observed(fleet, drill.__name__, lambda: drill(fleet)).statuses) <= statuses
    assert {name for name, pid in before.items() if fleet.process(name).pid != pid} == replaced


@pytest.mark.parametrize("moment_s", MOMENTS_S)
@pytest.mark.parametrize("name", ["supervisor", "control", "envoy", "nothing"])
def test_gateway_serves_though_a_process_is_killed_as_it_starts(fleet: Fleet, name: str, moment_s: float) -> None:
    gateway, run = fleet.gateway, str(fleet.gateway.state_dir)
    gateway.command("stop")
    assert [each for each in psutil.process_iter(["cmdline"]) if run in str(each.info)] == []
    words = ["--config", str(gateway.config), "--nodes-file", str(gateway.nodes_file), "--state-dir", run]
    begun = subprocess.Popen([sys.executable, "-m", "deploy.gateway", "run", *words], cwd=ROOT)
    time.sleep(moment_s)
    # There may be none yet.
    with suppress(StopIteration, OSError, ValueError, psutil.Error):
        (psutil.Process(begun.pid) if name == "supervisor" else fleet.process(name)).kill()
    if name in ("supervisor", "nothing"):
        # Another one starts in the same folder: one of both is the gateway.
        assert gateway.command("start").returncode == 0
    fleet.wait_ready()
    supervisor = int((gateway.state_dir / "gateway.pid").read_text())
    assert begun.poll() in ((None,) if begun.pid == supervisor else (-9, 1))
    begun.terminate()
    begun.wait(READY_S)
