"""Nodes as containers run them, without containers: each its command, its run folder, its address of loopback.

    Pod: python -m deploy.container, on 127.0.0.N:PORT       Hosts: /etc/hosts of the gateway alone

All nodes have one port and separate addresses, to which a name resolves, like a headless Service for an edge.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import requests

from deploy.models import ROOT
from deploy.run.properties import relocate_config
from deploy.run.server import Server
from deploy.sandbox import make_settings

HOST = "torchserve-nodes"
# A start takes ten seconds alone, and some on two cores that others use.
START_S, END_S = 180.0, 120.0


def config_of(folder: Path, store: Path, models: dict[str, object], replaced: dict[str, str]) -> Path:
    """A config.properties for a node, production's but for its models: names what is served, tokens on."""
    text = (ROOT / "config.production.properties").read_text(encoding="utf-8")
    before, _, rest = text.partition("load_models=")
    _, _, after = rest.partition("# Archives come")
    names = ",".join(f"{name}.mar" for name in models)
    text = f"{before}load_models={names}\nmodels={json.dumps(models)}\n\n# Archives come{after}"
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "config.properties"
    path.write_text(relocate_config(text, ROOT, make_settings(store)), encoding="utf-8")
    return path


class Pod:
    """One node's process."""

    def __init__(self, address: str, port: int, store: Path, models: dict[str, object], replaced: dict[str, str]):
        self.address, self.port = address, port
        # A short path: workers have sockets in it.
        self.folder = Path(tempfile.mkdtemp(prefix="pod-"))
        self.run = self.folder / "run"
        self.config = config_of(self.folder, store, models, replaced)
        self.output = self.folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def start(self) -> None:
        """Run the command as a kubelet does; again in the same folder after a death, as an emptyDir is kept."""
        variables = {"NODE_CONFIG": str(self.config), "NODE_STATE_DIR": str(self.run)}
        variables |= {"NODE_ADDRESS": self.address, "NODE_PORT": str(self.port)}
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deploy.container"],
                cwd=ROOT, env={**os.environ, **variables},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def probe(self, path: str = "/ready", timeout_s: float = 5.0) -> int:
        with requests.Session() as session:
            session.trust_env = False
            try:
                return session.get(self.url + path, timeout=timeout_s).status_code
            except requests.RequestException:
                return 0

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while self.probe() != 200:
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.25)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def server(self) -> Server:
        return Server(self.run / "config.properties", directory=self.run, temporary=self.run / "tmp")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def kill(self) -> None:
        """Kill every process at once, as the end of a container's process namespace does."""
        mine = [self.process.pid, self.server.pid(), self._envoy()]
        found = [psutil.Process(pid) for pid in mine if pid is not None]
        for process in found + [child for each in found for child in each.children(recursive=True)]:
            if process.is_running():
                process.send_signal(signal.SIGKILL)
        self.process.wait(END_S)

    def _envoy(self) -> int | None:
        try:
            return int((self.run / "envoy" / "envoy.pid").read_text())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Hosts:
    """The addresses of HOST, for processes in a mount namespace that has this file as /etc/hosts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.addresses: list[str] = []
        self.write()

    @property
    def within(self) -> list[str]:
        """Words that stand before a command which is to see it."""
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        script = f'mount --bind {self._path} /etc/hosts && exec "$@"'
        return ["unshare", "--mount", *as_root, "sh", "-c", script, "sh"]

    def add(self, address: str) -> None:
        self.addresses.append(address)
        self.write()

    def remove(self, address: str) -> None:
        self.addresses.remove(address)
        self.write()

    def write(self) -> None:
        """In place: the namespace has this very file."""
        lines = ["127.0.0.1 localhost", *(f"{address} {HOST}" for address in self.addresses)]
        self._path.write_text("\n".join(lines) + "\n", encoding="utf-8")
