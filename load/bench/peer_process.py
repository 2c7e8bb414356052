"""Servers of other projects, as processes of their own environments: started, paused, stopped.

Peer, a first request -> started -> PeerProcess -> awake while it is measured
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from deploy.models import ROOT
from deploy.sandbox import free_ports
from load.bench.peer_graph import INPUT, OUTPUT
from load.errors import LoadError

START_S = 120.0  # seconds to wait for a first answer
END_S = 15.0  # seconds for a process to end before it is killed
# Bytes of the JSON in front of a tensor, filled up with blanks: a header tells their number.
HEAD_BYTES = 256


def raw(row: Any) -> bytes:
    """Write a row as its numbers alone."""
    return bytes(row.tobytes())


def kserve(row: Any) -> bytes:
    """Write a row as a binary request of the Open Inference Protocol."""
    tensor = {"name": INPUT, "shape": [1, *row.shape], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": row.nbytes}}]
    outputs = [{"name": OUTPUT, "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode().ljust(HEAD_BYTES) + raw(row)


@dataclass(frozen=True, slots=True)
class Peer:
    """A server of another project."""

    name: str
    extra: str  # the folder of .extras that it is installed in
    command: Sequence[str]  # a program of that folder and its arguments, which the port follows
    path: str  # where requests are posted to
    body: Callable[[Any], bytes] = raw  # writes a row as the server takes it; the answer ends with its scores
    headers: Mapping[str, str] = field(default_factory=dict)  # of a request
    variables: Mapping[str, str] = field(default_factory=dict)  # of its process


BENTOML = Peer(
    "BentoML",
    "peers",
    ("bentoml", "serve", "load.bench.serve_bentoml:Network", "--host", "127.0.0.1", "--port"),
    "infer",
    variables={"BENTOML_DO_NOT_TRACK": "True"},
)
LITSERVE = Peer("LitServe", "peers", ("python", "-m", "load.bench.serve_litserve"), "predict")
PYTRITON = Peer(
    "PyTriton",
    "pytriton",
    ("python", "-m", "load.bench.serve_pytriton"),
    "v2/models/network/infer",
    kserve,
    {"Inference-Header-Content-Length": str(HEAD_BYTES)},
    # Triton's stub must find the libpython of this very version, and not the system's.
    {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))},
)


def build_environment(extra: str, lock: Path | None = None) -> None:
    """Build .extras/EXTRA where it differs from its lock; raises LoadError where that fails."""
    folder, lock = ROOT / ".extras" / extra, lock or Path(__file__).with_name(f"{extra}.lock")
    commands: list[list[str | Path]] = [[ROOT / "deploy" / "extras" / "environment.sh", extra]]
    if lock.exists():  # it goes with nothing else of the project: PyTriton takes no NumPy 2
        uv: list[str | Path] = [ROOT / ".uv" / "bin" / "uv", "--quiet"]
        sync = [*uv, "pip", "sync", "--require-hashes", "--python", folder, lock]
        commands = [[*uv, "venv", "--allow-existing", "--python", sys.executable, folder], sync]
    for command in commands:
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
            raise LoadError(f"the environment .extras/{extra} cannot be built; its own words are above")


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that answers at `url`; `pid` is the first of its processes, and its group.

    BentoML's workers, which take nothing while they are idle, have groups of their own, and end with the first process.
    """

    url: str
    pid: int

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run for a while; it is paused otherwise, since an idle LitServe takes an eighth of a core."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextmanager
def started(peer: Peer, probe: bytes, variables: Mapping[str, str] | None = None) -> Iterator[PeerProcess]:
    """Start a peer, with more variables than its own, and wait until it answers a probe; end it on the way out.

    Raises:
        LoadError: it does not answer; the message has its last words.
    """
    (port,) = free_ports(1)
    program, *arguments = peer.command
    command: list[str | Path] = [ROOT / ".extras" / peer.extra / "bin" / program, *arguments, str(port)]
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        own = {"BENTOML_HOME": f"{folder}/bentoml", "PYTHONPATH": str(ROOT), "TMPDIR": folder, **peer.variables}
        environment = {**os.environ, **own, **(variables or {})}
        log = Path(folder, "log")
        with (
            log.open("wb") as output,
            # Ctrl-C reaches the benchmark alone, which ends the processes of this group.
            subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
            ) as process,
        ):
            running = PeerProcess(f"http://127.0.0.1:{port}/{peer.path}", process.pid)
            try:
                _wait(peer, probe, running.url, process, log)
                yield running
            finally:
                running.signal(signal.SIGCONT)
                # SIGINT first, then SIGKILL for the rest.
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                running.signal(signal.SIGKILL)


def _wait(peer: Peer, probe: bytes, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s, session = time.monotonic() + START_S, requests.Session()
    session.trust_env = False
    session.headers.update({"Content-Type": "application/octet-stream", **peer.headers})
    while True:
        with suppress(requests.RequestException):
            if session.post(url, data=probe, timeout=START_S).ok:
                return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise LoadError(f"{peer.name} does not answer: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
