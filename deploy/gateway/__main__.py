"""`make gateway`: Envoy in front of the nodes, and the process that configures it.

start  in the background, until `stop`; what it prints works
run    stays, for systemd and containers
stop   when the last answer is out
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil

from deploy.gateway.envoy.process import Envoy
from deploy.gateway.settings import CONFIG, RUN, Settings, read
from deploy.gateway.supervisor import GatewayFailed, listens, started, supervise
from deploy.models import ROOT
from deploy.run.machine import LocalNode, reachable
from deploy.run.node import NODES, write
from deploy.run.server import Server
from handlers.errors import InvalidConfig

PID = "gateway.pid"
# Seconds until both processes must be up. `stop` waits as long as Envoy lets answers in flight take, and this longer.
START_S, STOP_S = 90.0, 30.0
# Seconds that a control process takes to notice that it is alone, and to end.
CONTROL_S = 10.0


def running(run: Path) -> psutil.Process | None:
    """Return the process that supervises the gateway of a run folder, where it runs."""
    try:
        process = psutil.Process(int((run / PID).read_text()))
        is_gateway = "deploy.gateway" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
        return process if is_gateway else None
    except (OSError, ValueError, psutil.Error):
        return None


def start(options: argparse.Namespace, settings: Settings) -> None:
    """Start the gateway in the background and wait until it answers.

    Raises:
        GatewayFailed: it did not come up.
    """
    if (process := running(options.run)) is not None:
        print(f"gateway: already running, process {process.pid}")
        print_addresses(settings)
        return
    alone = LocalNode("node-1", options.nodes.parent / "node-1", Server(ROOT / "config.properties"))
    if options.nodes == NODES.resolve() and not NODES.exists() and alone.server.pid() is not None:
        # It was started by hand; `make serve` would have written this.
        write(reachable([alone]))
    check_ports(settings, is_envoy_up=Envoy(options.run).pid() is not None)
    options.run.mkdir(parents=True, exist_ok=True)
    words = ["run", "--config", str(options.config), "--nodes", str(options.nodes), "--run", str(options.run)]
    log = options.run / "gateway.log"
    child = started(["deploy.gateway", *words], log)
    deadline = time.monotonic() + START_S
    while running(options.run) is None or not all(listens(*each) for each in addresses(settings)):
        if child.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            stop(options)
            raise GatewayFailed(f"did not start ({log}): {''.join(said)}".replace(": gateway:", ":"))
        time.sleep(0.1)
    print(f"gateway: started, process {child.pid}, logs in {options.run.name}/")
    print_addresses(settings)


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Run the gateway until a SIGTERM or Ctrl-C.

    Raises:
        GatewayFailed: it did not come up, or keeps dying.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if (process := running(options.run)) is not None and process.pid != os.getpid():
        raise GatewayFailed(f"already running, process {process.pid}")
    options.run.mkdir(parents=True, exist_ok=True)
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    (options.run / PID).write_text(str(os.getpid()))
    try:
        supervise(settings, options.config, options.nodes, options.run, is_ending)
    finally:
        (options.run / PID).unlink(missing_ok=True)


def stop(options: argparse.Namespace) -> bool:
    """End the gateway when its last answer is out; False where none runs."""
    try:
        limit_s = read(options.config).limits.response_s
    except (InvalidConfig, OSError):
        limit_s = Settings().limits.response_s
    process = running(options.run)
    # Whoever killed what supervises it has left Envoy behind, which serves on.
    envoy = Envoy(options.run)
    was_running = process is not None or envoy.pid() is not None
    if process is not None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit_s + STOP_S)
        except psutil.TimeoutExpired:
            process.kill()
    envoy.stop(limit_s)
    (options.run / PID).unlink(missing_ok=True)
    return was_running


def addresses(settings: Settings) -> list[tuple[str, int]]:
    """Return the hosts and ports of the gateway: the control process' first, then Envoy's."""
    ports = settings.ports
    internal = [(ports.internal_address, ports.metrics), (ports.control_address, ports.control)]
    return [*internal, (ports.address, ports.http), (ports.address, ports.grpc)]


def check_ports(settings: Settings, *, is_envoy_up: bool) -> None:
    """Check that no other server listens there; an Envoy that outlived its supervisor is none.

    Raises:
        GatewayFailed: it names the ports.
    """
    wanted = addresses(settings)[: 2 if is_envoy_up else 4]
    # A control process ends within seconds of who supervised it.
    deadline = time.monotonic() + (CONTROL_S if is_envoy_up else 0.0)
    while taken := [f"{host}:{port}" for host, port in wanted if listens(host, port)]:
        if time.monotonic() > deadline:
            raise GatewayFailed(f"{', '.join(taken)} taken by another server; gateway.yaml names other ports")
        time.sleep(0.1)


def print_addresses(settings: Settings) -> None:
    """Print where it listens, and calls that work."""
    ports = settings.ports
    url = f"{'https' if settings.tls else 'http'}://{ports.address}:{ports.http}"
    print(f"  HTTP     {url}   predictions, Open Inference Protocol, the page at /")
    print(f"  gRPC     {ports.address}:{ports.grpc}          the same protocol, for Triton's clients")
    print(f"  metrics  http://{ports.internal_address}:{ports.metrics}/metrics")
    key = " -H 'Authorization: Bearer KEY'" if settings.keys else ""
    trusted = " --cacert CA.pem" if settings.tls else ""
    print(f"\n$ curl{trusted} -i {url}/v2/health/ready")
    print(f"$ curl{trusted}{key} {url}/v2")


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.gateway", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["start", "run", "stop"], help="run stays until the gateway ends")
    parser.add_argument("--config", type=Path, default=CONFIG, metavar="PATH", help="gateway.yaml")
    parser.add_argument("--nodes", type=Path, default=NODES, metavar="PATH", help="what make serve started")
    parser.add_argument("--run", type=Path, default=RUN, metavar="PATH", help="folder of logs and of what is kept")
    options = parser.parse_args(arguments)
    options.config, options.nodes, options.run = (
        path.resolve() for path in (options.config, options.nodes, options.run)
    )
    try:
        if options.command == "stop":
            print("gateway: stopped" if stop(options) else "gateway: not running")
        elif sys.platform != "linux":
            raise GatewayFailed("needs Linux: Envoy comes as a wheel for Linux alone")
        else:
            {"start": start, "run": run}[options.command](options, read(options.config))
    except (GatewayFailed, InvalidConfig, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
