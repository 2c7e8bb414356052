"""The nodes of this machine: where each lies, and what it is configured by.

    config.properties, how many -> Layout -> LocalNode: a Server with its folder, ports, share -> Node, for nodes.json

One node is the repository's server: the configuration itself, logs/ and key_file.json of the repository. Several have a
folder each, .nodes/NAME/, with their own config.properties, logs/, key_file.json and tmp/; the model store is shared.
The first keeps the ports of the configuration, each other's are 100 higher than those of the one before.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from deploy.models import ROOT
from deploy.run.node import NODES, RESTORE, Node, replace
from deploy.run.properties import Settings, moved
from deploy.run.server import WHOLE, Server, ServerError, Share

FOLDER = NODES.parent
# Between the ports of two nodes: more than a configuration's own are apart, 8080 to 8082 and 7070 to 7071.
PORT_STEP = 100
# Bytes of a socket's path (sockaddr_un, with its end); TorchServe's workers have one in the node's tmp/.
SOCKET_PATH = 108
SOCKET_NAME = "/.ts.sock.65535"


@dataclass(frozen=True)
class LocalNode:
    """A node of this machine.

    Attributes:
        name: node-1, node-2, ...
        folder: what is known of it beside the server's own files.
        server: its TorchServe.
    """

    name: str
    folder: Path
    server: Server

    @property
    def is_alone(self) -> bool:
        """Whether it is the repository's one server, in the repository's own folders."""
        return self.server.directory != self.folder

    @property
    def title(self) -> str:
        """Its name in messages: TorchServe where it is the only one."""
        return "TorchServe" if self.is_alone else self.name

    def node(self) -> Node:
        """Return its name and addresses, as the gateway reaches it.

        Raises:
            ServerError: it has addresses that the gateway cannot reach.
        """
        settings = self.server.settings
        try:
            return Node(
                name=self.name,
                inference=_reached(settings.inference_url),
                management=_reached(settings.management_url),
                metrics=_reached(settings.metrics_url),
                token_file=str(self.server.keys.resolve()) if settings.has_tokens else None,
                restore_file=str(self.folder.resolve() / RESTORE),
            )
        except ValidationError as error:
            (problem, *_) = error.errors(include_url=False)
            raise ServerError(f"{self.server.config.name}: {problem['loc'][0]} {problem['msg']}") from None


@dataclass(frozen=True, slots=True)
class Layout:
    """What `make serve` was asked for last.

    Attributes:
        config: the configuration that all nodes have in common.
        nodes: how many there are.
    """

    config: Path
    nodes: int

    def write(self, folder: Path = FOLDER) -> None:
        """Write it for `read`."""
        replace(folder / "layout.json", json.dumps({"config": str(self.config.resolve()), "nodes": self.nodes}))

    @classmethod
    def read(cls, folder: Path = FOLDER) -> "Layout | None":
        """Return what was written last; None where nothing was, or its configuration is gone."""
        try:
            found = json.loads((folder / "layout.json").read_text())
            layout = cls(Path(found["config"]), int(found["nodes"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return layout if layout.config.is_file() else None


def local_nodes(layout: Layout, folder: Path = FOLDER, root: Path = ROOT) -> list[LocalNode]:
    """Return the nodes of a layout, running or not.

    Args:
        layout: which configuration, how many.
        folder: where their folders are.
        root: what relative paths of the configuration are relative to.

    Raises:
        ServerError: there is no room for them: a port beyond 65535, or a folder whose path is too long.
    """
    if layout.nodes == 1:
        return [LocalNode("node-1", folder / "node-1", Server(layout.config))]
    text = layout.config.read_text(encoding="utf-8")
    settings = Settings.read(layout.config)
    found = []
    cores = sorted(os.sched_getaffinity(0))
    for number, share in enumerate(shares(cores, gpus_here(os.environ), layout.nodes)):
        values = _addresses(settings, number * PORT_STEP)
        values["model_store"] = str((root / settings.model_store).resolve())
        if share.gpu is not None:
            # TorchServe counts the machine's, whatever CUDA_VISIBLE_DEVICES says.
            values["number_of_gpu"] = "1"
        name = f"node-{number + 1}"
        found.append(placed(name, folder / name, text, root=root, values=values, share=share))
    return found


def shares(cores: Sequence[int], gpus: Sequence[str], nodes: int) -> list[Share]:
    """Split a machine; a node alone has all of it.

    Args:
        cores: numbers of those that may be used. Neighbours stay together, as caches and memory are shared by
            neighbours.
        gpus: as CUDA_VISIBLE_DEVICES names them; none where there are none.
        nodes: how many share the machine.
    """
    if nodes == 1:
        return [WHOLE]
    found = []
    for node in range(nodes):
        if nodes <= len(cores):
            first, last = node * len(cores) // nodes, (node + 1) * len(cores) // nodes
            own = tuple(cores[first:last])
        else:
            own = (cores[node % len(cores)],)
        found.append(Share(own, gpus[node % len(gpus)] if gpus else None))
    return found


def gpus_here(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs of this machine, or those of them that CUDA_VISIBLE_DEVICES leaves."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in listed.stdout.splitlines() if line.strip().isdecimal()]


def placed(
    name: str, place: Path, text: str, *, root: Path, values: Mapping[str, str], share: Share = WHOLE
) -> LocalNode:
    """Make a node's own folder, with its config.properties and tmp/.

    Args:
        name: the node's.
        place: its folder, which is made.
        text: the config.properties that it is made of.
        root: what relative paths of `text` are relative to.
        values: settings that replace those of `text`.
        share: its part of the machine.

    Raises:
        ServerError: the folder's path is too long.
    """
    temporary = place / "tmp"
    if len(os.fsencode(temporary.resolve())) + len(SOCKET_NAME) >= SOCKET_PATH:
        raise ServerError(f"{temporary}: too long a path for the workers' sockets; {SOCKET_PATH} bytes at most")
    temporary.mkdir(parents=True, exist_ok=True)
    config = place / "config.properties"
    replace(config, moved(text, root, values))
    return LocalNode(name, place, Server(config, directory=place, temporary=temporary, share=share))


def everything(config: Path, folder: Path = FOLDER) -> list[LocalNode]:
    """Return the server that is alone, and the nodes that have folders of their own; running or not.

    Args:
        config: of the server that is alone.
        folder: of the nodes, which are as they were configured last.
    """
    places = sorted(path.parent for path in folder.glob("node-*/config.properties"))
    return [
        LocalNode("node-1", folder / "node-1", Server(config)),
        *(
            LocalNode(place.name, place, Server(place / "config.properties", directory=place, temporary=place / "tmp"))
            for place in places
        ),
    ]


def reachable(nodes: Sequence[LocalNode]) -> list[Node]:
    """Return the nodes that the gateway can reach: all, or none where the only one has other addresses.

    Raises:
        ServerError: one of several cannot be reached.
    """
    try:
        return [each.node() for each in nodes]
    except ServerError:
        if len(nodes) > 1:
            raise
        return []


def _addresses(settings: Settings, shift: int) -> dict[str, str]:
    """The settings that name a listening port, each so much higher."""
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


def _reached(url: str) -> str:
    """An address that is listened at, as one that is called."""
    return url.rstrip("/").replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
