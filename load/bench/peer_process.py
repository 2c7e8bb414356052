"""Servers that others make, as processes of their own environments: started, paused, ended.

Peer (command, how a row is sent and answered), Given -> started -> PeerProcess -> awake, while it is measured
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import requests

from deploy.models import ROOT
from deploy.sandbox import free_ports
from load.bench.onnx_model import INPUT, OUTPUT, Given
from load.errors import LoadError

# Seconds to wait for a first answer, and for a process to end before it is killed.
START_S, END_S = 120.0, 15.0
# Bytes of the JSON in front of a tensor, filled up with blanks: PyTriton's clients tell the length in a header.
HEAD_BYTES = 256
# (folder of the environment's programs, port) -> the command
Command = Callable[[Path, str], Sequence[str | Path]]


def _kserve(row: Any) -> bytes:
    """Write the Open Inference Protocol's binary request."""
    tensor = {"name": INPUT, "shape": [1, *row.shape], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": row.nbytes}}]
    outputs = [{"name": OUTPUT, "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode().ljust(HEAD_BYTES) + bytes(row.tobytes())


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that others make.

    Attributes:
        name: as the table has it.
        extra: its environment, a folder of .extras.
        command: what starts it.
        path: of the address that a row is posted to.
        body: writes a row of float32 as it takes it; its answer ends with the scores in float32.
        headers: sent beside it.
        variables: of its environment.
    """

    name: str
    extra: str
    command: Command
    path: str
    body: Callable[[Any], bytes] = lambda row: bytes(row.tobytes())
    headers: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


BENTOML = Peer(
    "BentoML",
    "peers",
    lambda bin, port: [
        bin / "bentoml",
        "serve",
        "load.bench.serve_bentoml:Network",
        "--host=127.0.0.1",
        "--port",
        port,
    ],
    "infer",
    variables={"BENTOML_DO_NOT_TRACK": "True"},
)
LITSERVE = Peer(
    "LitServe", "peers", lambda bin, port: [bin / "python", "-m", "load.bench.serve_litserve", port], "predict"
)
PYTRITON = Peer(
    "PyTriton",
    "pytriton",
    lambda bin, port: [bin / "python", "-m", "load.bench.serve_pytriton", port],
    "v2/models/network/infer",
    _kserve,
    {"Inference-Header-Content-Length": str(HEAD_BYTES)},
    # Triton's stub is linked against the libpython of this version, which must be the one whose library it finds.
    {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))},
)


def build_environment(extra: str) -> None:
    """Build .extras/EXTRA where it is not what its lock says.

    Raises:
        LoadError: it cannot be built.
    """
    folder, lock = ROOT / ".extras" / extra, Path(__file__).with_name(f"{extra}.lock")
    commands: list[list[str | Path]] = [[ROOT / "deploy" / "extras" / "environment.sh", extra]]
    if lock.exists():  # what goes with nothing else of the project, NumPy 1 in PyTriton's case
        uv: list[str | Path] = [ROOT / ".uv" / "bin" / "uv", "--quiet"]
        sync = [*uv, "pip", "sync", "--require-hashes", "--python", folder, lock]
        commands = [[*uv, "venv", "--allow-existing", "--python", sys.executable, folder], sync]
    for command in commands:
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
            raise LoadError(f"the environment .extras/{extra} cannot be built; its own words are above")


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that answers.

    Attributes:
        url: where a row is posted to.
        pid: the first of its processes, and the group of them all.
    """

    url: str
    pid: int

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let it run for a while; it is paused otherwise, since LitServe polls, and others would lose by that."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextlib.contextmanager
def started(peer: Peer, given: Given) -> Iterator[PeerProcess]:
    """Start a peer and wait until it answers; end it with all of its processes on the way out.

    Raises:
        LoadError: it does not answer; the message has its last words.
    """
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        own = {"BENTOML_HOME": f"{folder}/bentoml", "PYTHONPATH": str(ROOT), "TMPDIR": folder, **peer.variables}
        log = Path(folder, "log")
        with (
            log.open("wb") as output,
            subprocess.Popen(
                peer.command(ROOT / ".extras" / peer.extra / "bin", str(port)),
                cwd=ROOT,
                env={**os.environ, **own, **given.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C reaches the benchmark alone, which ends these processes.
                start_new_session=True,
            ) as process,
        ):
            running = PeerProcess(f"http://127.0.0.1:{port}/{peer.path}", process.pid)
            try:
                _wait(peer, given, running.url, process, log)
                yield running
            finally:
                running.signal(signal.SIGCONT)
                # As a person ends it; what is left is killed.
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                running.signal(signal.SIGKILL)


def _wait(peer: Peer, given: Given, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    row = peer.body(np.zeros(given.shape, np.float32))
    with requests.Session() as session:
        session.trust_env = False
        headers = {**peer.headers, "Content-Type": "application/octet-stream"}
        while True:
            with contextlib.suppress(requests.RequestException):
                if session.post(url, data=row, headers=headers, timeout=START_S).ok:
                    return
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise LoadError(f"{peer.name} does not answer: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
