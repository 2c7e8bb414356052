"""BentoML and LitServe as processes of .extras/peers, with the same ONNX file and the same batches.

    environment -> the Python of .extras/peers -> started(PEER, Given) -> Running: where to post a row; paused, resumed

What each is given, and why:
    both        one process or one for each core, whichever is faster with 64 clients: of BentoML workers with a model
                each, of LitServe HTTP servers in front of one model; onnxruntime on as many threads as ours has, which
                do not spin: a core that waits for work is the HTTP server's and the load generator's; bodies of raw
                float32, the cheapest that there are; uvicorn's C parser and event loop; no access log
    BentoML     adaptive batching (`batchable`) without a limit of latency that it would drop requests for; no metrics
    LitServe    dynamic batching with the shortest `batch_timeout` that its worker does not poll at without a pause; its
                faster queue, ZeroMQ
"""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import requests

from deploy.models import ROOT
from deploy.sandbox import free_ports
from load.bench.onnx_session import Given
from load.bench.peers import BenchError
from load.bench.progress import progress
from load.measure.exchange import OK

EXTRA = "peers"
# Seconds to wait for a first answer, and for a process to end before it is killed.
START_S, END_S = 120.0, 15.0


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that others make.

    Attributes:
        name: as the table has it.
        path: of the address that a row is posted to.
        command: (folder of its environment's programs, port) -> what starts it.
    """

    name: str
    path: str
    command: Callable[[Path, int], Sequence[str]]


def _bentoml(programs: Path, port: int) -> Sequence[str]:
    service = "load.bench.serve_bentoml:Network"
    return [str(programs / "bentoml"), "serve", service, "--host", "127.0.0.1", "--port", str(port)]


def _litserve(programs: Path, port: int) -> Sequence[str]:
    return [str(programs / "python"), "-m", "load.bench.serve_litserve", str(port)]


PEERS = (Peer("BentoML", "infer", _bentoml), Peer("LitServe", "predict", _litserve))


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that answers.

    Attributes:
        url: where a row is posted to.
        process: the first of its processes.
    """

    url: str
    process: psutil.Process

    def pause(self) -> None:
        """Have it take no processor time: LitServe polls, and what another one loses by that is not its own."""
        for process in _family(self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        """Have it go on."""
        for process in _family(self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def environment() -> Path:
    """Build .extras/peers where it is not what its lock says, and return the folder of its programs.

    Raises:
        BenchError: it cannot be built.
    """
    progress(f"environment: .extras/{EXTRA}")
    if subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", EXTRA], cwd=ROOT, check=False).returncode:
        raise BenchError(f"the environment of {EXTRA} cannot be built; its own words are above")
    return ROOT / ".extras" / EXTRA / "bin"


@contextlib.contextmanager
def started(peer: Peer, given: Given, programs: Path, row: bytes) -> Iterator[Running]:
    """Start a peer, wait until it answers, and end it with all of its processes on the way out.

    Args:
        peer: which one.
        given: what it serves.
        programs: the folder of its environment's programs.
        row: a row as it is posted.

    Raises:
        BenchError: it does not answer; the message has its last words.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        own = {
            "BENTOML_HOME": str(Path(folder, "bentoml")),
            "BENTOML_DO_NOT_TRACK": "True",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": folder,
        }
        log = Path(folder, "log")
        with (
            log.open("wb") as output,
            subprocess.Popen(
                peer.command(programs, port),
                cwd=ROOT,
                env={**os.environ, **own, **given.environment()},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                # Ctrl-C reaches the benchmark alone, which ends these processes.
                start_new_session=True,
            ) as process,
        ):
            running = Running(f"http://127.0.0.1:{port}/{peer.path}", psutil.Process(process.pid))
            try:
                _wait(peer, running, row, log)
                yield running
            finally:
                _end(running)


def _wait(peer: Peer, running: Running, row: bytes, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    with requests.Session() as session:
        session.trust_env = False
        while True:
            with contextlib.suppress(requests.RequestException):
                answer = session.post(
                    running.url, data=row, headers={"Content-Type": "application/octet-stream"}, timeout=START_S
                )
                if answer.status_code == OK:
                    return
            is_over = not running.process.is_running() or running.process.status() == psutil.STATUS_ZOMBIE
            if is_over or time.monotonic() > deadline_s:
                raise BenchError(f"{peer.name} does not answer: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _end(running: Running) -> None:
    """End a peer by SIGINT, as a person would, and kill what is left."""
    family = _family(running.process)
    running.resume()
    with contextlib.suppress(psutil.NoSuchProcess):
        running.process.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(family, END_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
