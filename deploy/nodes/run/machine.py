"""The nodes of this machine: the folder and the configuration of each.

    config.properties, node count -> Layout -> LocalNode: a Server with folder, ports, share -> Node, for nodes.json

In a clone, a single node is the repository's server: the configuration itself, and the clone's logs/ and key_file.json.
Several nodes, and each node of an installation, have a folder each, .nodes/NAME/, with config.properties, logs/,
key_file.json and tmp/; they share the model store. The first node has the ports of the configuration, each further
node has ports higher by PORT_STEP.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.node import NODES, RESTORE, Node, reachable_host, replace_file
from deploy.nodes.run.properties import ServerSettings, relocate_config
from deploy.nodes.run.server import WHOLE, Server, Share
from deploy.places import HOME

FOLDER = NODES.parent
PORT_STEP = 100  # between the ports of two nodes; a configuration's own ports are 8080 to 8082 and 7070 to 7071
SOCKET_PATH_BYTES = 108  # bytes of a socket's path with its end (sockaddr_un)
SOCKET_NAME = "/.ts.sock.65535"  # the longest name of a worker's socket in a node's tmp/
NVIDIA_SMI_S = 30.0  # timeout of nvidia-smi


@dataclass(frozen=True)
class LocalNode:
    """A node of this machine: its name (node-1, node-2, ...), its folder beside the server's files, its TorchServe."""

    name: str
    folder: Path
    server: Server

    @property
    def is_single(self) -> bool:
        """Whether it is the repository's one server, in the repository's own folders."""
        return self.server.directory != self.folder

    @property
    def title(self) -> str:
        """The name in messages: TorchServe for a single node."""
        return "TorchServe" if self.is_single else self.name

    def node(self) -> Node:
        """Return the name and the addresses for the gateway; a ServerError names an address that it cannot reach."""
        settings = self.server.settings
        try:
            return Node(
                name=self.name,
                inference=_reachable_url(settings.inference_url),
                management=_reachable_url(settings.management_url),
                metrics=_reachable_url(settings.metrics_url),
                token_file=str(self.server.keys.resolve()) if settings.has_tokens else None,
                restore_file=str(self.folder.resolve() / RESTORE),
            )
        except ValidationError as error:
            (problem, *_) = error.errors(include_url=False)
            raise ServerError(f"{self.server.config.name}: {problem['loc'][0]} {problem['msg']}") from None


@dataclass(frozen=True, slots=True)
class Layout:
    """The configuration and the number of nodes that `make serve` started last."""

    config: Path
    nodes: int

    def write(self, folder: Path = FOLDER) -> None:
        replace_file(folder / "layout.json", json.dumps({"config": str(self.config.resolve()), "nodes": self.nodes}))

    @classmethod
    def read(cls, folder: Path = FOLDER) -> "Layout | None":
        """Return the last layout; None if there is no layout or its configuration no longer exists."""
        try:
            found = json.loads((folder / "layout.json").read_text())
            layout = cls(Path(found["config"]), int(found["nodes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return layout if layout.config.is_file() else None


def local_nodes(layout: Layout, folder: Path = FOLDER, root: Path = ROOT) -> list[LocalNode]:
    """Return the nodes of a layout, running or not; relative paths of the configuration are relative to `root`."""
    if layout.nodes == 1 and HOME == ROOT:
        return [LocalNode("node-1", folder / "node-1", Server(layout.config))]
    text = layout.config.read_text(encoding="utf-8")
    settings = ServerSettings.read(layout.config)
    place = files = root
    if HOME != ROOT:
        # Relative paths count from the user's configuration; a copied one may name files that it lacks.
        place = HOME if layout.config.parent == ROOT else layout.config.parent
        files = place if (place / settings.metrics_config).is_file() else ROOT
    found = []
    cores = sorted(os.sched_getaffinity(0))
    for number, share in enumerate(split_machine(cores, find_gpus(os.environ), layout.nodes)):
        values = _shift_ports(settings, number * PORT_STEP)
        values["model_store"] = str((place / settings.model_store).resolve())
        if share.gpu is not None:
            values["number_of_gpu"] = "1"  # TorchServe counts the machine's GPUs, and ignores CUDA_VISIBLE_DEVICES
        name = f"node-{number + 1}"
        found.append(make_local_node(name, folder / name, text, root=files, values=values, share=share))
    return found


def split_machine(cores: Sequence[int], gpus: Sequence[str], nodes: int) -> list[Share]:
    """Divide cores and GPUs (as in CUDA_VISIBLE_DEVICES) among nodes; a single node has the whole machine."""
    if nodes == 1:
        return [WHOLE]
    found = []
    for node in range(nodes):
        if nodes <= len(cores):
            # Neighbouring cores share caches and memory.
            first, last = node * len(cores) // nodes, (node + 1) * len(cores) // nodes
            own = tuple(cores[first:last])
        else:
            own = (cores[node % len(cores)],)
        found.append(Share(own, gpus[node % len(gpus)] if gpus else None))
    return found


def find_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs of this machine, restricted by CUDA_VISIBLE_DEVICES."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NVIDIA_SMI_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.stdout.splitlines() if line.strip().isdecimal()]


def make_local_node(
    name: str, folder: Path, text: str, *, root: Path, values: Mapping[str, str], share: Share = WHOLE
) -> LocalNode:
    """Make a node's folder from `text` with `values` replaced; a ServerError reports a path that is too long."""
    temporary = folder / "tmp"
    if len(os.fsencode(temporary.resolve())) + len(SOCKET_NAME) >= SOCKET_PATH_BYTES:
        raise ServerError(f"{temporary}: too long a path for the workers' sockets; {SOCKET_PATH_BYTES} bytes at most")
    temporary.mkdir(parents=True, exist_ok=True)
    config = folder / "config.properties"
    replace_file(config, relocate_config(text, root, values))
    return LocalNode(name, folder, Server(config, directory=folder, temporary=temporary, share=share))


def all_nodes(config: Path, folder: Path = FOLDER) -> list[LocalNode]:
    """Return the single server of `config` and the nodes that have folders, running or not."""
    places = sorted(path.parent for path in folder.glob("node-*/config.properties"))
    return [
        LocalNode("node-1", folder / "node-1", Server(config)),
        *(
            LocalNode(place.name, place, Server(place / "config.properties", directory=place, temporary=place / "tmp"))
            for place in places
        ),
    ]


def reachable_nodes(nodes: Sequence[LocalNode]) -> list[Node]:
    """Return the nodes for the gateway; none if it cannot reach a single node, a ServerError for one of several."""
    try:
        return [each.node() for each in nodes]
    except ServerError:
        if len(nodes) > 1:
            raise
        return []


def _shift_ports(settings: ServerSettings, shift: int) -> dict[str, str]:
    """Return the settings of all listening ports, each higher by `shift`."""
    urls = {
        "inference_address": settings.inference_url,
        "management_address": settings.management_url,
        "metrics_address": settings.metrics_url,
    }
    values = {}
    for name, (_, port) in settings.ports.items():
        own = port + shift
        if own > 65535:
            raise ServerError(f"{name}: {port} and {shift // PORT_STEP} times {PORT_STEP} are beyond 65535")
        values[name] = f"{urls[name].rpartition(':')[0]}:{own}" if name in urls else str(own)
    return values


def _reachable_url(url: str) -> str:
    host, _, port = url.rstrip("/").removeprefix("http://").rpartition(":")
    return f"http://{reachable_host(host)}:{port}" if url.startswith("http://") else url
