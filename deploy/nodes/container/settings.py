"""The settings of a node in a container: variables of its environment.

environment, or defaults -> NodeSettings -> LocalNode: a Server below the state folder
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from deploy.models import ROOT
from deploy.nodes.run.machine import LocalNode, make_local_node
from deploy.nodes.run.properties import ServerSettings
from deploy.settings_file import Port, read_settings
from torchserve_client.payloads import Json

CONFIG = Path("/etc/torchserve/config.properties")
STATE_DIR = Path("/run/torchserve")
# The address and the port of the node's Envoy.
ADDRESS = "127.0.0.1"
PORT = 8085
# Seconds until every edge has noticed that the node drains: the edges' `limits.unresponsive_s`, in which they check a
# node four times.
NOTICE_S = 5.0
# Minutes until a token expires: ten years. The tokens never leave the node, and an expired token would stop it.
TOKEN_MIN = 10 * 365 * 24 * 60


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node of a container. All files that it writes are below `state_dir`."""

    # Each variable is named by its field: NODE_CONFIG, NODE_STATE_DIR, ...
    config: Path = CONFIG
    state_dir: Path = STATE_DIR
    model_store: Path | None = None  # the folder of archives, MODEL_STORE; None for the configuration's
    address: str = ADDRESS
    port: Port = PORT
    notice_s: float = NOTICE_S
    forward_headers: tuple[str, ...] = ()  # as in gateway.yaml; separated by commas

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "NodeSettings":
        """Read the variables; an InvalidConfig lists every problem."""
        names = {f.name: "MODEL_STORE" if f.name == "model_store" else f"NODE_{f.name.upper()}" for f in fields(cls)}
        given: Json = {name: environment[key] for name, key in names.items() if environment.get(key)}
        for name in given.keys() & {"config", "state_dir", "model_store"}:
            given[name] = Path(given[name]).resolve()
        if "forward_headers" in given:
            given["forward_headers"] = [*filter(None, given["forward_headers"].split(","))]
        return read_settings(cls, Path("environment"), given)

    @property
    def envoy(self) -> Path:
        return self.state_dir / "envoy"

    def local(self) -> LocalNode:
        text = self.config.read_text(encoding="utf-8")
        store = self.model_store or ROOT / ServerSettings.read(self.config).model_store
        values = {"model_store": str(store.resolve()), "token_expiration_min": str(TOKEN_MIN)}
        return make_local_node("node", self.state_dir, text, root=ROOT, values=values)
