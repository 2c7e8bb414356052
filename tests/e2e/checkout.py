"""A copy of the repository with separate ports, logs and temporary files.

Checkout(folder) -> its `make serve` runs beside any other server
    Reader       -> runs the shell blocks of its pages, in their order, in one shell
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from deploy.models import ROOT
from deploy.nodes.run.properties import relocate_config
from deploy.nodes.run.server import Server
from load.sandbox import free_ports, make_settings
from tests.exports import shared
from tests.rooms import tracked

# Files that make builds an environment from; older than a borrowed one.
MADE_OF = ("requirements.lock", "deploy/environment.sh")
# Variables of this process's Python and make that a reader's shell does not have.
DROPPED = {"PYTHONPATH", "VIRTUAL_ENV", "JAVA_HOME", "LOG_LOCATION", "METRICS_LOCATION"}
DROPPED |= {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "OMP_NUM_THREADS"}
GATEWAY = {"http": 8000, "grpc": 8001, "metrics": 8002, "control": 8003, "probe": 8004}


class Checkout:
    """A copy of the repository."""

    def __init__(self, folder: Path, *, has_environment: bool) -> None:
        """Copy the repository."""
        self.folder, self._temporary = folder / "repository", folder / "tmp"
        self._temporary.mkdir()
        for name in tracked():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)
        # By fingerprint: the same code, of the same locked packages.
        (self.folder / "model_store" / ".exports").symlink_to(shared())
        if has_environment:
            (self.folder / ".venv").symlink_to(ROOT / ".venv")
            # Its command has the programs of ROOT.
            command = self._temporary / "bin" / "torchserve-batching"
            command.parent.mkdir()
            command.write_text(f'#!/bin/sh\nPYTHONPATH={self.folder} exec python -m torchserve_batching "$@"\n')
            command.chmod(0o755)
            for name in MADE_OF:
                os.utime(self.folder / name, (0, 0))
        servers, gateway = make_settings(self.store), dict(zip(GATEWAY, free_ports(len(GATEWAY)), strict=True))
        for name in ("config.properties", "config.production.properties"):
            path = self.folder / name
            path.write_text(relocate_config(path.read_text(), self.folder, servers))
        path = self.folder / "deploy" / "gateway.yaml"
        path.write_text(f"{path.read_text()}\nports: {gateway}\n")
        apis = {8080: "inference", 8081: "management", 8082: "metrics"}
        self.ports = {port: int(servers[f"{api}_address"].rpartition(":")[2]) for port, api in apis.items()}
        self.ports |= {port: gateway[name] for name, port in GATEWAY.items()}
        self._gateway_ports = f"ports: {gateway}\n"

    @property
    def store(self) -> Path:
        return self.folder / "model_store"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in DROPPED}
        path = [part for part in kept["PATH"].split(os.pathsep) if not part.startswith(str(ROOT))]
        own = {"PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "TORCH_HOME": str(self._temporary / "torch")}
        own |= dict.fromkeys(("TMPDIR", "TEMP"), str(self._temporary))
        # With a borrowed environment only the published weights are missing, and nothing is fetched.
        if (self.folder / ".venv").is_symlink():
            own |= {"https_proxy": "http://127.0.0.1:9", "no_proxy": "localhost"}
        for name, port in (("TORCHSERVE_URL", 8080), ("TORCHSERVE_MANAGEMENT_URL", 8081)):
            own[name] = f"http://localhost:{self.ports[port]}"
        return {**kept, **own}

    def server(self, config: str) -> Server:
        return Server(self.folder / config, directory=self.folder, temporary=self._temporary)

    def run(self, script: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a script in bash, as a reader types it but for the ports."""
        text = re.sub(r"\b80[08]\d\b", lambda match: str(self.ports.get(int(match[0]), match[0])), script)
        text = text.replace("\nkey_file:", f"\n{self._gateway_ports}key_file:")
        text = text.replace("bin/activate\n", f"bin/activate\nPATH={self._temporary}/bin:$PATH\n")
        # Into files: a server that keeps running would keep a pipe open.
        with (self._temporary / "out").open("w+") as out, (self._temporary / "err").open("w+") as err:
            around: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "timeout": timeout_s}
            around |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            finished = subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=False, **around)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(text, finished.returncode, out.read(), err.read())

    def processes(self) -> list[int]:
        found = psutil.process_iter(["cmdline"])
        return [each.pid for each in found if any(str(self.folder) in word for word in each.info["cmdline"] or [])]


@contextmanager
def checkout(folder: Path, *, has_environment: bool = True) -> Iterator[Checkout]:
    made = Checkout(folder, has_environment=has_environment)
    try:
        yield made
    finally:
        if made.processes():
            made.run("make stop")


# A command of a block -> what the block prints.
PRINTED = {
    "make serve\n": r'(?s)Response +\{"espresso": 0\..*Stop +make stop\n\{\s*"espresso": ?0\.',
    "curl -F data=@": r'\{"[^{]*\}',
    " archive sentence-embedding language-id\n": r'(?s)\[\{"label":"en","score":.*\{"predictions":\[\[-?0\.',
    "examples/mnist/train.py\n": r'mnist: ready\n\{"predictions":\[\[(1\.0|0\.99)',
    "save_pretrained(": r"\A\Z",
    "cat > my/models.yaml": r"\A\Z",
    "torchserve-batching archive reviews ": r"(?s)reviews: ready.*label +BYTES",
    '"I was bored"]}': r'"good".*"predictions":.*"bad"',
    " as package; ": r"\A\Z",
    "cat > my/embeddings.yaml": r'(?s)texts.mar: .*"status": "Model .*registered with 1 initial workers"',
    "until curl -fsH": r'(?s)"name": ?"texts".*"object": ?"list"',
    "for team in ": r"\A\Z",
    "openssl req": r"\A\Z",
    "gateway start --config my/gateway.yaml": "gateway: started",
    "key=$(sed": r'"espresso": ?0\.',
    "torchserve-batching gateway stop": "gateway: stopped",
    "cp -r my/reviews": r"\A\Z",
    "torchserve-batching archive tickets ": "tickets: ready",
    "torchserve-batching load run": "target (unknown|(NOT )?[Mm][Ee][Tt])",
    "X-Timeout-Ms: 2000": "200 OK",
    " archive colours ": r'\{"name":"navy"\}\{"predictions":\[\{"name":"chocolate"\},\{"name":"navy"\}\]\}',
    "torchserve-batching archive embedding\n": 'READY|registered|"status"',
    "until curl -fs localhost:8000/v2": r'(?s)\{"name": "embedding".*"shape":\[2,384\],"data":\[.*"object":"embedding"',
    "grep handler_batch_size\n": r'handler_batch_size_count\{ModelName="mobilenet-v2"',
    "torchserve-batching predict ": r"(?s)2 answered, 0 failed.*version 1\.0(-untrained)? is unregistered",
    "torchserve --stop\n": "TorchServe has stopped",
}
# Error bodies of TorchServe, a handler or the gateway, which curl does not report.
WENT_WRONG = re.compile(r'"code": ?[45]\d\d|\{"error"')


class Reader:
    """Runs the blocks of README.md and of the pages that follow it, one after the other."""

    def __init__(self, checkout: Checkout, shell: str = "") -> None:
        """Begin with lines that all blocks need: an activated environment, variables."""
        self._checkout, self._shell = checkout, shell

    def read(self, block: str) -> str:
        """Run a block; returns what it printed."""
        ((_, printed),) = [(command, printed) for command, printed in PRINTED.items() if command in block]
        done = self._checkout.run(f"{self._shell}{block}", 600)
        is_right = re.search(printed, done.stdout) and not WENT_WRONG.search(done.stdout)
        assert done.returncode == 0 and is_right, f"{block}\n{done.stdout}\n{done.stderr}"
        self._shell += "".join(f"{line}\n" for line in block.splitlines() if re.match(r"(source |export |\w+=)", line))
        return done.stdout
