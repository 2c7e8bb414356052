"""Two nodes of one machine and a gateway in front of them, as `make serve NODES=2` and `make gateway` have them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import requests

from deploy.models import ROOT
from deploy.nodes.run.machine import Layout, local_nodes, reachable_nodes
from deploy.nodes.run.node import write_nodes
from deploy.nodes.run.properties import relocate_config
from load.sandbox import GATEWAY_PORTS, Sandbox, free_ports, make_settings
from tests.photographs import photograph
from tests.waiting import until

READY_S = 120.0
# Load, of what both nodes can do while one of two cores may be busy with a start: one of them has 1.2 times what it can
# do while the other is away. What is too much waits, in memory that fewer and larger bodies would need.
SHARE, BODIES = 0.6, [photograph("chelsea"), photograph("coffee")]
QUEUE = {"job_queue_size=64": "job_queue_size=512", "max_request_size=8388608": "max_request_size=1048576"}


def with_lines(text: str, replaced: Mapping[str, str]) -> str:
    """Put other lines into a config.properties."""
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    return text


def control_of(gateway: Sandbox) -> psutil.Process | None:
    supervisor = psutil.Process(int((gateway.state_dir / "gateway.pid").read_text()))
    return next((child for child in supervisor.children() if "deploy.gateway.control" in child.cmdline()), None)


class Machine:
    """In a folder, whose path is short: sockets of workers are in it."""

    def __init__(self, folder: Path, archive: Path, model: str, replaced: Mapping[str, str], **settings: Any) -> None:
        """Write the configuration, with other lines, and the gateway's settings; start nothing."""
        (folder / "store").mkdir()
        os.link(archive, folder / "store" / archive.name)
        text = with_lines((ROOT / "config.properties").read_text(encoding="utf-8"), replaced)
        self.config, self.folder = folder / "config.properties", folder / "nodes"
        self.config.write_text(relocate_config(text, ROOT, make_settings(folder / "store")), encoding="utf-8")
        layout = Layout(self.config, 2)
        self.nodes = local_nodes(layout, self.folder)
        layout.write(self.folder)
        # Its supervisor starts the nodes of this folder again.
        write_nodes(reachable_nodes(self.nodes), self.folder / "nodes.json")
        ports = dict(zip(GATEWAY_PORTS, free_ports(len(GATEWAY_PORTS)), strict=True))
        (folder / "gateway").mkdir(exist_ok=True)
        self.gateway = Sandbox(folder / "gateway", {"ports": ports, **settings}, ())
        self.gateway.nodes_file = self.folder / "nodes.json"
        self.url = f"{self.gateway.http}/predictions/{model}"

    def command(self, name: str) -> None:
        """Start or stop the gateway."""
        done = self.gateway.command(name)
        assert done.returncode == 0, done.stderr

    def wait_ready(self) -> None:
        """Wait until both nodes get requests, as the control process and Envoy see it."""

        def is_ready() -> bool:
            try:
                nodes = requests.get(f"{self.gateway.control}/control/nodes", timeout=10).json()
                is_routed = [each["is_routed"] for each in nodes] == [True] * 2
                return is_routed and requests.get(f"{self.gateway.http}/v2/health/ready", timeout=10).ok
            except (requests.RequestException, ValueError):
                return False

        until(is_ready, READY_S)
