"""Servers of other projects, as processes in separate environments.

Peer, a first request -> start -> PeerProcess -> awake during its measurements
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
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deploy.models import ROOT
from load import LoadError
from load.bench.peer_graph import INPUT, OUTPUT
from load.sandbox import free_ports
from torchserve_client import protocol
from torchserve_client.errors import ClientError
from torchserve_client.transport import Request, Transport

START_S = 120.0  # seconds to wait for a first response
END_S = 15.0  # seconds for a process to end before it is killed
HEAD_BYTES = 256  # bytes of the JSON before a tensor, padded with blanks so that all requests have equal headers


def encode_raw(row: NDArray[np.float32]) -> bytes:
    return bytes(row.tobytes())


def encode_tensor(row: NDArray[np.float32]) -> bytes:
    """Return a row as a binary request of the Open Inference Protocol."""
    tensor = {"name": INPUT, "shape": [1, *row.shape], "datatype": "FP32"}
    inputs = [{**tensor, "parameters": {"binary_data_size": row.nbytes}}]
    outputs = [{"name": OUTPUT, "parameters": {"binary_data": True}}]
    return json.dumps({"inputs": inputs, "outputs": outputs}).encode().ljust(HEAD_BYTES) + encode_raw(row)


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    extra: str  # its folder in .extras
    command: Sequence[str]  # a program of that folder and its arguments; the port is appended
    path: str  # of predictions
    # Returns the body of a row; the response ends with its scores.
    encode: Callable[[NDArray[np.float32]], bytes] = encode_raw
    headers: Mapping[str, str] = field(default_factory=dict)  # of a request
    variables: Mapping[str, str] = field(default_factory=dict)  # of its process
    waits_ms: Sequence[float] = ()  # to try: its default and the values that its documentation suggests


BENTOML = Peer(
    "BentoML",
    "peers",
    ("bentoml", "serve", "load.bench.serve_bentoml:Network", "--host", "127.0.0.1", "--port"),
    "infer",
    variables={"BENTOML_DO_NOT_TRACK": "True"},
    waits_ms=(10, 100, 1000, 60_000),
)
LITSERVE = Peer("LitServe", "peers", ("python", "-m", "load.bench.serve_litserve"), "predict", waits_ms=(0, 1, 10, 50))
PYTRITON = Peer(
    "PyTriton",
    "pytriton",
    ("python", "-m", "load.bench.serve_pytriton"),
    "v2/models/network/infer",
    encode_tensor,
    {protocol.HEADER: str(HEAD_BYTES)},
    # Triton's stub must find the libpython of this version, not the system's.
    {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))},
    (0, 0.1, 1, 5),
)


def build_environment(extra: str, lock: Path | None = None) -> None:
    """Build .extras/EXTRA if it differs from its lock."""
    if not (ROOT / "pyproject.toml").is_file():
        raise LoadError(f".extras/{extra} is built only in a clone: run the bench there, or name other parts")
    folder, lock = ROOT / ".extras" / extra, lock or Path(__file__).with_name(f"{extra}.lock")
    commands: list[list[str | Path]] = [[ROOT / "deploy" / "extras" / "environment.sh", extra]]
    if lock.exists():  # an environment without this project: PyTriton does not work with NumPy 2
        uv: list[str | Path] = [ROOT / ".uv" / "bin" / "uv", "--quiet"]
        sync = [*uv, "pip", "sync", "--require-hashes", "--python", folder, lock]
        commands = [[*uv, "venv", "--allow-existing", "--python", sys.executable, folder], sync]
    for command in commands:
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
            raise LoadError(f"the environment .extras/{extra} cannot be built; see the messages above")


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that serves `url`; BentoML's workers have their own groups and end with the first process."""

    url: str
    pid: int

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Resume the peer in the block and pause it afterwards, since an idle LitServe uses an eighth of a core."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.signal(signal.SIGSTOP)

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextmanager
def start(peer: Peer, probe: bytes, variables: Mapping[str, str] | None = None) -> Iterator[PeerProcess]:
    """Run a peer with additional variables, and wait for its response to a probe; LoadError with its log if none."""
    (port,) = free_ports(1)
    program, *arguments = peer.command
    command: list[str | Path] = [ROOT / ".extras" / peer.extra / "bin" / program, *arguments, str(port)]
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        own = {"BENTOML_HOME": f"{folder}/bentoml", "PYTHONPATH": str(ROOT), "TMPDIR": folder, **peer.variables}
        environment = {**os.environ, **own, **(variables or {})}
        log = Path(folder, "log")
        with (
            log.open("wb") as output,
            # In a new session only the benchmark receives Ctrl-C, and ends this group.
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
                # SIGINT for a clean end, then SIGKILL for remaining processes.
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                running.signal(signal.SIGKILL)


def _wait(peer: Peer, probe: bytes, url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    request = Request("POST", url, probe, {"Content-Type": "application/octet-stream", **peer.headers})
    while True:
        with suppress(ClientError), closing(Transport(connections=1)) as transport:
            if transport.send(request, START_S).is_ok:
                return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise LoadError(f"{peer.name} does not respond: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)
