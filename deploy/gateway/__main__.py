"""`make gateway`: starts, checks and stops Envoy and the process that configures it."""

import argparse
import logging
import resource
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

from deploy.command import CommandParser, run_command
from deploy.gateway.configuration import GUARDED, START, STARTED
from deploy.gateway.envoy import files
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.settings import CONFIG, STATE_DIR, GatewaySettings, Ports, read_settings
from deploy.gateway.supervisor import PROBLEM, GatewayFailed, is_listening, read_problem, start_module, supervise
from deploy.gateway.watch import read_saved
from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.machine import LocalNode, reachable_nodes
from deploy.nodes.run.node import NODES, write_nodes
from deploy.nodes.run.processes import find_holder, hold_pid_file, wait_until
from deploy.nodes.run.server import Server
from deploy.nodes.run.summary import shorten
from handlers.errors import InvalidConfig

PID = "gateway.pid"
STOP = "torchserve-batching gateway stop"
START_S = 90.0  # seconds until both processes must be up
STOP_S = 30.0  # seconds that `stop` waits beyond limits.response_s
CONTROL_S = 10.0  # seconds in which a control process notices that its supervisor has ended, and ends
FILES = 2  # open files for each client's connection, with one to a node
OWN_FILES = 768  # open files of Envoy itself and of probes


def start(options: argparse.Namespace, settings: GatewaySettings) -> None:
    """Start the gateway in the background and wait until it answers, or raise GatewayFailed."""
    state_dir: Path = options.state_dir
    addresses = list_addresses(settings.ports)
    if (pid := find_holder(state_dir / PID)) is not None:
        config, ports = read_saved(state_dir / STARTED, START, None) or (options.config, settings.ports)
        if config != options.config:
            raise GatewayFailed(f"already running with {shorten(config)} (pid {pid}); to stop it: {STOP}")
        if ports == settings.ports:
            # A start that was killed may have started it a moment ago.
            wait_until(lambda: all(is_listening(*each) for each in addresses), START_S)
            print(f"gateway: already running, process {pid}; to stop it: {STOP}")
            print_addresses(settings)
            check(options, settings)
            return
        kept = {port for _, port in list_addresses(ports)}
        check_ports(options.config, [each for each in addresses if each[1] not in kept])
        print(f"gateway: its ports have changed; stopping process {pid} ...", flush=True)
        stop(options)
    single = LocalNode("node-1", options.nodes_file.parent / "node-1", Server(ROOT / "config.properties"))
    if options.nodes_file == NODES.resolve() and not NODES.exists() and single.server.pid() is not None:
        # The server was started by hand; `make serve` would have written this file.
        write_nodes(reachable_nodes([single]))
    # An Envoy without a supervisor is kept; its control process ends within seconds.
    is_envoy_up = Envoy(state_dir).pid() is not None
    check_ports(options.config, addresses[: 2 if is_envoy_up else None], wait_s=CONTROL_S if is_envoy_up else 0.0)
    state_dir.mkdir(parents=True, exist_ok=True)
    paths = {"--config": options.config, "--nodes-file": options.nodes_file, "--state-dir": state_dir}
    log = state_dir / "gateway.log"
    child = start_module(["deploy.gateway", "run", *(str(word) for item in paths.items() for word in item)], log)

    # A gateway that was started at the same time may be the one that runs.
    def is_up() -> bool:
        return find_holder(state_dir / PID) is not None and all(is_listening(*each) for each in addresses)

    def has_failed() -> bool:
        return find_holder(state_dir / PID) is None and child.poll() is not None

    wait_until(lambda: is_up() or has_failed(), START_S)
    if not is_up():
        lines = log.read_text(errors="replace").strip().splitlines()[-1:]
        stop(options)
        raise GatewayFailed(f"did not start ({log}): {''.join(lines)}".replace(": gateway:", ":"))
    print(f"gateway: started, process {find_holder(state_dir / PID)}, logs in {state_dir.name}/")
    print_addresses(settings)


def check(options: argparse.Namespace, _: GatewaySettings) -> None:
    """Raise GatewayFailed if a running gateway does not work as configured."""
    if find_holder(options.state_dir / PID) is not None and (problem := read_problem(options.state_dir / PROBLEM)):
        raise GatewayFailed(problem)


def run(options: argparse.Namespace, settings: GatewaySettings) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections = settings.limits.connections
    if most < (needed := FILES * connections + OWN_FILES):
        raise GatewayFailed(f"limits.connections {connections} needs {needed} open files, and `ulimit -Hn` is {most}")
    state_dir: Path = options.state_dir
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    with hold_pid_file(state_dir / PID):
        (state_dir / GUARDED).unlink(missing_ok=True)
        (state_dir / STARTED).write_bytes(START.dump_json((options.config, settings.ports)))
        supervise(settings, options.config, options.nodes_file, state_dir, is_ending)


def stop(options: argparse.Namespace) -> bool:
    """End the gateway after its last response; return whether it was running."""
    started = read_saved(options.state_dir / STARTED, START, None)
    try:
        limit_s = read_settings(started[0] if started else options.config).limits.response_s
    except (InvalidConfig, OSError):
        limit_s = GatewaySettings().limits.response_s
    pid = find_holder(options.state_dir / PID)
    envoy = Envoy(options.state_dir)  # Envoy serves on if its supervisor was killed
    was_running = pid is not None or envoy.pid() is not None
    if pid is not None:
        try:
            process = psutil.Process(pid)
            process.send_signal(signal.SIGTERM)
            process.wait(limit_s + STOP_S)
        except psutil.TimeoutExpired:
            process.kill()
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied:
            raise ServerError(f"the gateway, process {pid}, is not stopped: another user runs it") from None
    envoy.stop(limit_s)
    return was_running


def list_addresses(ports: Ports) -> list[tuple[str, int]]:
    """Return the hosts and ports of the gateway: the control process' first, then Envoy's."""
    internal = [(ports.internal_address, ports.metrics), (ports.control_address, ports.control)]
    public = [(ports.address, ports.http), (ports.address, ports.grpc)]
    return [*internal, *public, (ports.internal_address, ports.probe)]


def check_ports(config: Path, addresses: Iterable[tuple[str, int]], wait_s: float = 0.0) -> None:
    """Raise GatewayFailed with the ports on which a server still listens after a wait."""
    taken: list[str] = []

    def are_free() -> bool:
        taken[:] = [f"{host}:{port}" for host, port in addresses if is_listening(host, port)]
        return not taken

    if not wait_until(are_free, wait_s):
        raise GatewayFailed(f"{', '.join(taken)}: another server listens there; set other `ports` in {shorten(config)}")


def print_addresses(settings: GatewaySettings) -> None:
    ports = settings.ports
    url = f"{'https' if settings.tls else 'http'}://{ports.address}:{ports.http}"
    print(f"  HTTP     {url}   predictions, Open Inference Protocol, the page at /")
    print(f"  gRPC     {ports.address}:{ports.grpc}          Open Inference Protocol, for Triton's clients")
    print(f"  metrics  http://{ports.internal_address}:{ports.metrics}/metrics")
    print(f"  probes   http://{ports.internal_address}:{ports.probe}/v2/health/live   and /v2/health/ready")
    key = " -H 'Authorization: Bearer KEY'" if settings.keys else ""
    trusted = " --cacert CA.pem" if settings.tls else ""
    print(f"\n$ curl{trusted} -i {url}/v2/health/ready")
    print(f"$ curl{trusted}{key} {url}/v2")


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="torchserve-batching gateway",
        description="Start, check and stop Envoy in front of the nodes, and the process that configures it.",
        examples=["torchserve-batching gateway start --config my/gateway.yaml", "torchserve-batching gateway stop"],
    )
    words = (
        "start: in the background, until stop; run: in the foreground, for systemd and containers; "
        "check: report settings that are not applied; stop: after the last response"
    )
    parser.add_argument("command", choices=["start", "run", "check", "stop"], help=words)
    files = parser.add_argument_group("files")
    words = "settings; default: deploy/gateway.yaml"
    files.add_argument("--config", type=Path, default=CONFIG, metavar="PATH", help=words)
    words = "nodes.json of make serve, if the settings name no nodes; default: .nodes/nodes.json"
    files.add_argument("--nodes-file", type=Path, default=NODES, metavar="PATH", help=words)
    words = "folder for logs and saved state; default: .gateway"
    files.add_argument("--state-dir", type=Path, default=STATE_DIR, metavar="PATH", help=words)
    return parser


def execute(options: argparse.Namespace) -> None:
    if options.command == "stop":
        print("gateway: stopped" if stop(options) else "gateway: not running")
        return
    if sys.platform != "linux":
        raise GatewayFailed("Envoy runs only on Linux")
    try:
        if not options.config.exists():
            raise GatewayFailed(f"no file {shorten(options.config)}; CONFIG is a copy of deploy/gateway.yaml")
        settings = read_settings(options.config)
    except (GatewayFailed, InvalidConfig, OSError):
        if options.command != "check" and find_holder(options.state_dir / PID) is None:
            files.shut(options.state_dir)  # an Envoy whose supervisor was killed has former keys
        raise
    {"start": start, "run": run, "check": check}[options.command](options, settings)


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    for name in ("config", "nodes_file", "state_dir"):
        setattr(options, name, getattr(options, name).resolve())
    return run_command("gateway", lambda: execute(options), GatewayFailed, ServerError, InvalidConfig, OSError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
