"""A network of its own for a node, so that it can be cut off instead of killed. Needs root, and Debian's iproute2.

    here, 10.231.N.1 <- veth -> 10.231.N.2, the namespace: a TorchServe

Cut off, packets both ways are addressed to a network card that there is not: nobody refuses, nobody answers.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.models import ROOT
from deploy.nodes.node import Node
from deploy.sandbox import Ports, config_for
from deploy.server import Server

# A network card of nobody: locally administered.
NOBODY = "02:00:00:00:00:01"
START = """
import sys
from pathlib import Path
from deploy.server import Server
config, folder = map(Path, sys.argv[1:])
Server(config, directory=folder, temporary=folder / "tmp").start()
"""


def ip(*words: str) -> str:
    """Run a command of iproute2."""
    finished = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"ip {' '.join(words)}: {finished.stderr}"
    return finished.stdout


@dataclass(frozen=True)
class Namespace:
    """A namespace and the pair of network cards that leads to it.

    Attributes:
        name: of the namespace.
        near, far: the cards here and there.
        near_address, far_address: theirs.
    """

    name: str
    near: str
    far: str
    near_address: str
    far_address: str

    def cut(self) -> None:
        """Lose every packet from now on, both ways."""
        ip("neigh", "replace", self.far_address, "lladdr", NOBODY, "dev", self.near, "nud", "permanent")
        inside = ("-n", self.name, "neigh", "replace", self.near_address)
        ip(*inside, "lladdr", NOBODY, "dev", self.far, "nud", "permanent")

    def mend(self) -> None:
        """Let packets through again."""
        ip("neigh", "del", self.far_address, "dev", self.near)
        ip("-n", self.name, "neigh", "del", self.near_address, "dev", self.far)

    @contextmanager
    def server(self, model_store: Path, folder: Path, name: str) -> Iterator[tuple[Server, Node]]:
        """A TorchServe in the namespace, stopped at the end, and its addresses as they are from here."""
        ports = Ports.free()
        text = config_for((ROOT / "config.properties").read_text(encoding="utf-8"), ports, ROOT, model_store)
        config, temporary = folder / "config.properties", folder / "tmp"
        temporary.mkdir(parents=True)
        config.write_text(text.replace("http://127.0.0.1:", f"http://{self.far_address}:"), encoding="utf-8")
        server = Server(config, directory=folder, temporary=temporary)
        starting = ["ip", "netns", "exec", self.name, sys.executable, "-c", START, str(config), str(folder)]
        try:
            subprocess.run(
                starting, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
            )
            server.authorize()
            settings = server.settings
            yield (
                server,
                Node(
                    name=name,
                    inference=settings.inference_url,
                    management=settings.management_url,
                    metrics=settings.metrics_url,
                ),
            )
        finally:
            server.stop()


@contextmanager
def namespace(number: int) -> Iterator[Namespace]:
    """A namespace with an address; it and its cards are gone afterwards.

    Args:
        number: 0 to 255; two at a time need two.
    """
    # Names of network cards have at most 15 characters, and another run may be under way.
    tag = f"{os.getpid() % 100000}n{number}"
    # Addresses for private use; the run's own where two are under way.
    network = f"10.231.{(os.getpid() + number) % 256}"
    made = Namespace(f"torchserve-{tag}", f"ts{tag}a", f"ts{tag}b", f"{network}.1", f"{network}.2")
    ip("netns", "add", made.name)
    try:
        ip("link", "add", made.near, "type", "veth", "peer", "name", made.far)
        ip("link", "set", made.far, "netns", made.name)
        ip("addr", "add", f"{made.near_address}/30", "dev", made.near)
        ip("link", "set", made.near, "up")
        for words in (("addr", "add", f"{made.far_address}/30", "dev", made.far), ("link", "set", made.far, "up")):
            ip("-n", made.name, *words)
        ip("-n", made.name, "link", "set", "lo", "up")
        yield made
    finally:
        # Its end of the pair goes with the namespace, and the other end with that.
        ip("netns", "del", made.name)
        deadline = time.monotonic() + 10
        while made.near in ip("link", "show") and time.monotonic() < deadline:
            time.sleep(0.1)
