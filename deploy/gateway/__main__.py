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
from deploy.gateway.supervisor import GatewayFailed, Supervisor, listens, started
from deploy.run.node import NODES
from handlers.errors import InvalidConfig

# Seconds until both processes must be up. `stop` waits as long as Envoy lets answers in flight take, and this longer.
START_S, STOP_S = 90.0, 30.0
# Seconds that a control process takes to notice that it is alone, and to end.
CONTROL_S = 10.0


class Background:
    """The gateway that runs in the background: what is left of it in its run folder."""

    def __init__(self, run: Path) -> None:
        """Look at a run folder."""
        self._file = run / "gateway.pid"
        self.log = run / "gateway.log"

    def process(self) -> psutil.Process | None:
        """The process that supervises, where it runs."""
        try:
            process = psutil.Process(int(self._file.read_text()))
            is_gateway = "deploy.gateway" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
            return process if is_gateway else None
        except (OSError, ValueError, psutil.Error):
            return None

    def started(self, pid: int) -> None:
        """Remember it."""
        self._file.write_text(str(pid))

    def ended(self) -> None:
        """Forget it."""
        self._file.unlink(missing_ok=True)


def start(options: argparse.Namespace, settings: Settings) -> None:
    """Start the gateway in the background and wait until it answers.

    Raises:
        GatewayFailed: it did not come up.
    """
    background = Background(options.run)
    if (running := background.process()) is not None:
        print(f"gateway: already running, process {running.pid}")
        print_addresses(settings)
        return
    check_ports(settings, is_envoy_up=Envoy(options.run).pid() is not None)
    options.run.mkdir(parents=True, exist_ok=True)
    words = ["run", "--config", str(options.config), "--nodes", str(options.nodes), "--run", str(options.run)]
    process = started(["deploy.gateway", *words], background.log)
    deadline = time.monotonic() + START_S
    while not is_up(settings) or background.process() is None:
        if process.poll() is not None or time.monotonic() > deadline:
            said = background.log.read_text(errors="replace").strip().splitlines()[-1:]
            stop(options)
            raise GatewayFailed(f"did not start ({background.log}): {''.join(said)}".replace(": gateway:", ":"))
        time.sleep(0.1)
    print(f"gateway: started, process {process.pid}, logs in {options.run.name}/")
    print_addresses(settings)


def run(options: argparse.Namespace, settings: Settings) -> None:
    """Run the gateway until a SIGTERM or Ctrl-C.

    Raises:
        GatewayFailed: it did not come up, or keeps dying.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    background = Background(options.run)
    if (running := background.process()) is not None and running.pid != os.getpid():
        raise GatewayFailed(f"already running, process {running.pid}")
    options.run.mkdir(parents=True, exist_ok=True)
    is_told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_told.set())
    background.started(os.getpid())
    supervisor = Supervisor(settings, options.config, options.nodes, options.run)
    try:
        supervisor.run(is_told)
    finally:
        background.ended()


def stop(options: argparse.Namespace) -> bool:
    """End the gateway when its last answer is out; False where none runs."""
    background = Background(options.run)
    process = background.process()
    wait_s = response_s(options)
    if process is None:
        background.ended()
        # Whoever killed what supervises it has left Envoy behind, which serves on.
        envoy = Envoy(options.run)
        is_left = envoy.pid() is not None
        envoy.stop(wait_s)
        return is_left
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(wait_s + STOP_S)
    except psutil.TimeoutExpired:
        process.kill()
    background.ended()
    return True


def response_s(options: argparse.Namespace) -> float:
    """How long answers in flight may take."""
    try:
        return read(options.config).limits.response_s
    except (InvalidConfig, OSError):
        return Settings().limits.response_s


def addresses(settings: Settings) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Hosts and ports: Envoy's, and the control process'."""
    ports = settings.ports
    return (
        [(ports.address, ports.http), (ports.address, ports.grpc)],
        [(ports.internal_address, ports.metrics), (ports.control_address, ports.control)],
    )


def is_up(settings: Settings) -> bool:
    """Whether both processes listen; who may ask them more, with TLS and keys, is not for this to know."""
    return all(listens(host, port) for part in addresses(settings) for host, port in part)


def check_ports(settings: Settings, *, is_envoy_up: bool) -> None:
    """Check that nobody else listens where the gateway shall; an Envoy that outlived its supervisor is none else.

    Raises:
        GatewayFailed: it names the ports.
    """
    clients, internal = addresses(settings)
    wanted = internal if is_envoy_up else clients + internal
    # A control process ends within seconds of who supervised it.
    deadline = time.monotonic() + (CONTROL_S if is_envoy_up else 0.0)
    while taken := [f"{host}:{port}" for host, port in wanted if listens(host, port)]:
        if time.monotonic() > deadline:
            raise GatewayFailed(f"{', '.join(taken)} taken by another server; gateway.yaml names other ports")
        time.sleep(0.1)


def print_addresses(settings: Settings) -> None:
    """Print where it listens, and calls that work."""
    ports = settings.ports
    scheme = "https" if settings.tls else "http"
    print(f"  HTTP     {scheme}://{ports.address}:{ports.http}   predictions, Open Inference Protocol, the page at /")
    print(f"  gRPC     {ports.address}:{ports.grpc}          the same protocol, for Triton's clients")
    print(f"  metrics  http://{ports.internal_address}:{ports.metrics}/metrics")
    key = " -H 'Authorization: Bearer KEY'" if settings.keys else ""
    trusted = " --cacert CA.pem" if settings.tls else ""
    print(f"\n$ curl{trusted} -i {scheme}://{ports.address}:{ports.http}/v2/health/ready")
    print(f"$ curl{trusted}{key} {scheme}://{ports.address}:{ports.http}/v2")


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
