"""`make gateway`: Envoy in front of the nodes, and the process that configures it.

start  in the background, until `stop`; what it prints works
check  whether the settings can be applied, and a running gateway has applied them
run    stays, for systemd and containers
stop   when the last answer is out
"""

import argparse
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import psutil

from deploy.gateway.envoy.process import Envoy
from deploy.gateway.settings import CONFIG, RUN, Ports, Settings, read
from deploy.gateway.supervisor import PROBLEM, GatewayFailed, listens, problem_of, started, supervise
from deploy.models import ROOT
from deploy.run.machine import LocalNode, reachable
from deploy.run.node import NODES, write
from deploy.run.nodes import held, holder, shown
from deploy.run.server import Server, ServerError
from handlers.errors import InvalidConfig

PID = "gateway.pid"
# The settings file of the gateway that was started last, and its ports, which hold until it ends.
STARTED = "started.json"
STOP = f"{os.path.relpath(sys.executable)} -m deploy.gateway stop"
START_S = 90.0  # seconds until both processes must be up
STOP_S = 30.0  # seconds that `stop` waits beyond what Envoy allows answers in flight
# Seconds that a control process takes to notice that it is alone, and to end.
CONTROL_S = 10.0
FILES = 2  # open files for each client's connection, with one to a node
OWN_FILES = 768  # open files of Envoy itself, with those of probes


def running(run: Path) -> int | None:
    """Return the process that supervises the gateway of a run folder, where it runs."""
    return holder(run / PID)


def start(options: argparse.Namespace, settings: Settings) -> None:
    """Start the gateway in the background and wait until it answers.

    Raises:
        GatewayFailed: it did not come up.
    """
    if (pid := running(options.run)) is not None:
        config, ports = _read_started(options.run) or (options.config, settings.ports)
        if config != options.config:
            raise GatewayFailed(f"already running with {shown(config)} (pid {pid}); to stop it: {STOP}")
        if ports == settings.ports:
            print(f"gateway: already running, process {pid}; to stop it: {STOP}")
            print_addresses(settings)
            check(options, settings)
            return
        kept = {port for _, port in addresses(ports)}
        check_ports(options.config, [each for each in addresses(settings.ports) if each[1] not in kept])
        print(f"gateway: its ports have changed; stopping process {pid} ...", flush=True)
        stop(options)
    alone = LocalNode("node-1", options.nodes.parent / "node-1", Server(ROOT / "config.properties"))
    if options.nodes == NODES.resolve() and not NODES.exists() and alone.server.pid() is not None:
        # It was started by hand; `make serve` would have written this.
        write(reachable([alone]))
    # An Envoy that outlived its supervisor is no other server, and a control process ends within seconds of it.
    is_envoy_up = Envoy(options.run).pid() is not None
    wanted = addresses(settings.ports)[: 2 if is_envoy_up else None]
    check_ports(options.config, wanted, wait_s=CONTROL_S if is_envoy_up else 0.0)
    options.run.mkdir(parents=True, exist_ok=True)
    words = ["run", "--config", str(options.config), "--nodes", str(options.nodes), "--run", str(options.run)]
    log = options.run / "gateway.log"
    child = started(["deploy.gateway", *words], log)
    deadline = time.monotonic() + START_S
    # Whoever was started at the same time may be the one that runs.
    while (pid := running(options.run)) is None or not all(listens(*each) for each in addresses(settings.ports)):
        if (pid is None and child.poll() is not None) or time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            stop(options)
            raise GatewayFailed(f"did not start ({log}): {''.join(said)}".replace(": gateway:", ":"))
        time.sleep(0.1)
    print(f"gateway: started, process {pid}, logs in {options.run.name}/")
    print_addresses(settings)


def _read_started(run: Path) -> tuple[Path, Ports] | None:
    """Return the settings file of the gateway that was started last, and the ports that it had; None if unknown."""
    try:
        config, ports = json.loads((run / STARTED).read_text(encoding="utf-8"))
        return Path(config), Ports(**ports)
    except (OSError, ValueError, TypeError):
        return None


def check(options: argparse.Namespace, _: Settings) -> None:
    """Raise GatewayFailed if a gateway runs that does not work as configured."""
    if running(options.run) is not None and (problem := problem_of(options.run / PROBLEM)):
        raise GatewayFailed(problem)


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Run the gateway until a SIGTERM or Ctrl-C.

    Raises:
        GatewayFailed: it did not come up, or keeps dying.
        ServerError: another one runs.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = settings.limits.connections
    if most < (needed := FILES * connections + OWN_FILES):
        raise GatewayFailed(f"limits.connections {connections} needs {needed} open files, and `ulimit -Hn` is {most}")
    options.run.mkdir(parents=True, exist_ok=True)
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    with held(options.run / PID):
        (options.run / STARTED).write_text(json.dumps([str(options.config), asdict(settings.ports)]), encoding="utf-8")
        supervise(settings, options.config, options.nodes, options.run, is_ending)


def stop(options: argparse.Namespace) -> bool:
    """End the gateway when its last answer is out; False where none runs."""
    started_with = _read_started(options.run)
    try:
        limit_s = read(started_with[0] if started_with else options.config).limits.response_s
    except (InvalidConfig, OSError):
        limit_s = Settings().limits.response_s
    pid = running(options.run)
    # Whoever killed what supervises it has left Envoy behind, which serves on.
    envoy = Envoy(options.run)
    was_running = pid is not None or envoy.pid() is not None
    if pid is not None:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(limit_s + STOP_S)
        except psutil.TimeoutExpired:
            process.kill()
    envoy.stop(limit_s)
    return was_running


def addresses(ports: Ports) -> list[tuple[str, int]]:
    """Return the hosts and ports of the gateway: the control process' first, then Envoy's."""
    internal = [(ports.internal_address, ports.metrics), (ports.control_address, ports.control)]
    public = [(ports.address, ports.http), (ports.address, ports.grpc)]
    return [*internal, *public, (ports.internal_address, ports.probe)]


def check_ports(config: Path, wanted: Iterable[tuple[str, int]], wait_s: float = 0.0) -> None:
    """Raise GatewayFailed, with the ports, if a server listens there for longer than a wait."""
    deadline = time.monotonic() + wait_s
    while taken := [f"{host}:{port}" for host, port in wanted if listens(host, port)]:
        if time.monotonic() > deadline:
            raise GatewayFailed(
                f"{', '.join(taken)}: another server listens there; set other `ports` in {shown(config)}"
            )
        time.sleep(0.1)


def print_addresses(settings: Settings) -> None:
    """Print where it listens, and calls that work."""
    ports = settings.ports
    url = f"{'https' if settings.tls else 'http'}://{ports.address}:{ports.http}"
    print(f"  HTTP     {url}   predictions, Open Inference Protocol, the page at /")
    print(f"  gRPC     {ports.address}:{ports.grpc}          the same protocol, for Triton's clients")
    print(f"  metrics  http://{ports.internal_address}:{ports.metrics}/metrics")
    print(f"  probes   http://{ports.internal_address}:{ports.probe}/v2/health/live   and /v2/health/ready")
    key = " -H 'Authorization: Bearer KEY'" if settings.keys else ""
    trusted = " --cacert CA.pem" if settings.tls else ""
    print(f"\n$ curl{trusted} -i {url}/v2/health/ready")
    print(f"$ curl{trusted}{key} {url}/v2")


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.gateway", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["start", "run", "check", "stop"], help="run stays until the gateway ends")
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
            if not options.config.is_file():
                raise GatewayFailed(f"no file {shown(options.config)}; CONFIG is a copy of deploy/gateway.yaml")
            {"start": start, "run": run, "check": check}[options.command](options, read(options.config))
    except (GatewayFailed, ServerError, InvalidConfig, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
