"""The files that configure the gateway, read anew when they change.

gateway.yaml ─────────────────────> Settings
its nodes, or the addresses of its
name, or .nodes/nodes.json, or
config.properties ────────────────> nodes
"""

import logging
from dataclasses import replace
from pathlib import Path

from deploy.gateway import settings as gateway_settings
from deploy.gateway.names import Names
from deploy.gateway.settings import Settings
from deploy.models import ROOT
from deploy.run import node as node_files
from deploy.run.node import Node, NoNodes
from deploy.run.properties import Settings as Properties
from handlers.errors import InvalidConfig

logger = logging.getLogger(__name__)

# The one TorchServe of a machine on which no nodes are named: that of `make serve`.
PROPERTIES = ROOT / "config.properties"
ONLY_NODE = "node-1"

# What tells one state of a file from another: when it was written, its size, its inode; None where there is none.
Mark = tuple[int, int, int] | None


class Configuration:
    """Settings and nodes, as files have them."""

    def __init__(self, config: Path, nodes: Path, names: Names | None = None) -> None:
        """Read nothing yet.

        Args:
            config: gateway.yaml.
            nodes: nodes.json, of whoever starts nodes on this machine.
            names: finds the nodes of a name; a test brings its own.
        """
        self._names = names or Names()
        self._config = config
        self._nodes = nodes
        self._marks: tuple[object, ...] = ()
        self._current: tuple[Settings, tuple[Node, ...]] | None = None

    def read(self, wait_s: float = 0.0) -> tuple[Settings, tuple[Node, ...]]:
        """Read both.

        Args:
            wait_s: seconds in which a name may be resolved for the first time.

        Raises:
            InvalidConfig: one of them is not as it should be.
            OSError: gateway.yaml cannot be read.
        """
        self._marks = self._look()
        settings = gateway_settings.read(self._config)
        if self._current is not None and settings.ports != self._current[0].ports:
            logger.warning("%s: ports change when the gateway is started anew", self._config.name)
            settings = replace(settings, ports=self._current[0].ports)
        found = self._names.nodes(settings.discover, wait_s)
        if settings.discover is not None:
            # Until another name is resolved, those stay that there are.
            nodes = found if found is not None else () if self._current is None else self._current[1]
        else:
            try:
                nodes = settings.nodes or tuple(node_files.read(self._nodes)) or (only_node(PROPERTIES),)
            except NoNodes as error:
                raise InvalidConfig(str(error)) from None
        self._current = settings, nodes
        return self._current

    def changed(self) -> tuple[Settings, tuple[Node, ...]] | None:
        """Read both where a file has changed and is as it should be; None where all stays, which the log explains."""
        if self._look() == self._marks:
            return None
        before = self._current
        try:
            after = self.read()
        except (InvalidConfig, OSError) as error:
            logger.error("%s; what was read before stays", error)
            return None
        if after == before:
            return None
        logger.info("read anew; nodes: %s", ", ".join(node.name for node in after[1]))
        return after

    def _look(self) -> tuple[object, ...]:
        return (self._names.found, *map(_mark, (self._config, self._nodes, PROPERTIES)))


def _mark(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def only_node(path: Path) -> Node:
    """Make a node of a config.properties.

    Raises:
        InvalidConfig: its addresses are none that a gateway reaches over HTTP.
        OSError: it cannot be read.
    """
    properties = Properties.read(path)
    urls = {
        api: url.rstrip("/").replace("//0.0.0.0:", "//127.0.0.1:")
        for api, url in (
            ("inference", properties.inference_url),
            ("management", properties.management_url),
            ("metrics", properties.metrics_url),
        )
    }
    try:
        return Node(
            name=ONLY_NODE, **urls, token_file=str(path.parent / "key_file.json") if properties.has_tokens else None
        )
    except ValueError:
        raise InvalidConfig(f"{path.name}: the gateway needs addresses that are http://HOST:PORT") from None
