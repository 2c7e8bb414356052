"""`python -m deploy.run drain NODE`: take a node out, wait for its last answer, stop it.

python -m deploy.run drain node-2           taken out, answered, stopped; it stays out until --undo
python -m deploy.run drain node-2 --keep    taken out and answered; it runs on
python -m deploy.run drain node-2 --undo    it gets requests again
"""

import argparse
import sys
from pathlib import Path

from deploy.gateway.departure import MARK, control_url, known, settings_of, take_out
from deploy.gateway.settings import CONFIG
from deploy.models import ROOT
from deploy.run.machine import FOLDER, Local, running_at
from deploy.run.running import end_node, supervisor
from deploy.run.server import ServerError
from torchserve_client.errors import ManagementError
from torchserve_client.gateway import Gateway


def drain(options: argparse.Namespace) -> bool:
    """Do what is asked; False where answers were still due when the time was up.

    Raises:
        ManagementError: the gateway does not answer, or has no such node.
        ServerError: files of the gateway are not as they should be.
    """
    settings = settings_of(options.gateway_config)
    gateway = Gateway(options.gateway or control_url(settings))
    name: str = options.node
    try:
        if options.undo:
            gateway.drain(name, is_draining=False)
            (options.folder / name / MARK).unlink(missing_ok=True)
            print(f"{name}: gets requests again")
            return True
        local = local_of(name, options)
        limit_s = settings.limits.response_s if options.timeout is None else options.timeout
        is_answered = take_out(gateway, name, print, timeout_s=limit_s)
    finally:
        gateway.close()
    if is_answered:
        print(f"{name}: taken out, and its last answer is out")
    if options.keep or not is_answered:
        return is_answered
    if local is None:
        print(f"{name}: not of this machine: it runs on")
        return True
    end_node(local, print, is_for_good=False)
    print(f"{name}: stopped; python -m deploy.run drain {name} --undo, once it is back, lets it get requests again")
    if (watched := supervisor(local)) is not None:
        print(f"{name}: process {watched} watches it, and whoever started that one may start it again")
    return True


def local_of(name: str, options: argparse.Namespace) -> Local | None:
    """Find the running node of this machine that the gateway calls so; None where it is of another, or not running."""
    nodes = {node.name: node for node in known(settings_of(options.gateway_config), options.folder)}
    return running_at(nodes[name].management, options.config, options.folder) if name in nodes else None


def main(arguments: list[str]) -> int:
    """Run it; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.run drain", description=__doc__.partition("\n")[0])
    parser.add_argument("node", metavar="NODE", help="its name, as the gateway has it: node-2")
    parser.add_argument("--undo", action="store_true", help="let it get requests again")
    parser.add_argument("--keep", action="store_true", help="do not stop it")
    parser.add_argument("--timeout", type=float, metavar="S", help="for its last answer; default: limits.response_s")
    parser.add_argument("--gateway", metavar="URL", help="the control API; default: as gateway.yaml has it")
    parser.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help="gateway.yaml")
    parser.add_argument("--config", type=Path, default=ROOT / "config.properties", help="of a node that is alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the nodes; default: .nodes")
    try:
        return 0 if drain(parser.parse_args(arguments)) else 1
    except (ManagementError, ServerError, OSError) as error:
        print(f"drain: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
