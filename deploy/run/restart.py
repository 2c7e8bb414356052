"""`python -m deploy.run restart`: the nodes of this machine, one after the other, without a lost request.

for each: the others are up -> taken out -> last answer out -> stopped -> started -> READY -> put back -> a moment
"""

import argparse
import sys
import time
from pathlib import Path

from deploy.gateway.departure import LOOK_S, control_url, known, name_of, settings_of, take_out, wait_routed
from deploy.gateway.settings import CONFIG
from deploy.models import ROOT
from deploy.run import configured
from deploy.run.machine import FOLDER, Local, everything
from deploy.run.running import end_node, record_of, run_node, supervisor
from deploy.run.server import ServerError
from deploy.run.waits import Waits
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError
from torchserve_client.gateway import Gateway

# Seconds in which whoever supervises a node must have started it again, with what it serves.
SUPERVISED_S = 300.0


def restart(local: Local, name: str, gateway: Gateway, timeout_s: float) -> None:
    """Restart one node.

    Args:
        local: a running node.
        name: as the gateway has it.
        gateway: in front of it.
        timeout_s: how long an answer may take.

    Raises:
        ServerError: it does not come back, or no other node would serve meanwhile. It stays taken out in the first
            case, and as it is in the second.
    """
    others = [node for node in gateway.nodes() if node.name != name]
    if lacking := [node.name for node in others if not node.is_routed]:
        raise ServerError(f"{name} is left as it is: {', '.join(lacking)} would not serve for it")
    if not others:
        raise ServerError(f"{name} is left as it is: no other node would serve for it")
    if not take_out(gateway, name, print, timeout_s=timeout_s):
        gateway.drain(name, is_draining=False)
        raise ServerError(f"{name} is left as it is, and gets requests again: it has not answered what it has")
    watched = supervisor(local)
    end_node(local, print, is_for_good=False)
    print(f"{name}: stopped")
    if watched is not None:
        print(f"{name}: process {watched} watched it; waiting for whoever starts it again")
        _wait_restarted(local)
    else:
        with Waits() as waits:
            if local.server.settings.has_model_api:
                run_node(local, waits)
            else:
                configured.prove(local, waits)
    gateway.drain(name, is_draining=False)
    print(f"{name}: gets requests again")
    wait_routed(gateway, name)


def _wait_restarted(local: Local) -> None:
    deadline = time.monotonic() + SUPERVISED_S
    while local.server.pid() is None or not record_of(local).is_done() or supervisor(local) is None:
        if time.monotonic() > deadline:
            raise ServerError(f"{local.name}: nobody has started it again after {SUPERVISED_S:g} s; it stays taken out")
        time.sleep(LOOK_S)


def main(arguments: list[str]) -> int:
    """Run it; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.run", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["restart"], help="one after the other")
    parser.add_argument("--gateway", metavar="URL", help="the control API; default: as gateway.yaml has it")
    parser.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help="gateway.yaml")
    parser.add_argument("--config", type=Path, default=ROOT / "config.properties", help="of a node that is alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the nodes; default: .nodes")
    options = parser.parse_args(arguments)
    try:
        settings = settings_of(options.gateway_config)
        gateway = Gateway(options.gateway or control_url(settings))
        nodes = known(settings, options.folder)
        running = [each for each in everything(options.config, options.folder) if each.server.pid() is not None]
        if not running:
            raise ServerError("no node of this machine runs")
        for local in running:
            restart(local, name_of(local, nodes), gateway, settings.limits.response_s)
        gateway.close()
    except (ManagementError, ServerError, InvalidConfig, OSError) as error:
        print(f"nodes: {error}", file=sys.stderr)
        return 1
    return 0
