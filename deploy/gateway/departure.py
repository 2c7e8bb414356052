"""Takes a node out without losing a request: the gateway sends it nothing new, and what it has is answered.

    take_out -> the gateway's files are renamed -> a moment -> in_flight 0 -> deploy.run.running stops it
    leave, come_back: the same around a stop and a start of a node of this machine

A node that is stopped by its supervisor (SIGTERM) is taken out too, and comes back by itself: .nodes/NAME/drained says
that nobody else took it out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.gateway.__main__ import Background
from deploy.gateway.settings import CONFIG, RUN, Settings, read
from deploy.run import node as node_files
from deploy.run.machine import FOLDER, Local
from deploy.run.node import NODES, Node, NoNodes
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError
from torchserve_client.gateway import Gateway

# Seconds after the gateway was told: Envoy reads its files anew within ms, and a request that was routed just before
# is in flight by then.
MOMENT_S = 1.0
LOOK_S = 0.1
# Seconds in which the gateway and Envoy find what a node that is back serves: a few looks each, on a slow machine.
ROUTED_S = 60.0
# What says that a supervisor, and no operator, took a node out.
MARK = "drained"


@dataclass(frozen=True, slots=True)
class Edge:
    """The gateway of this machine.

    Attributes:
        config: its gateway.yaml.
        run: the folder in which it leaves its process id.
    """

    config: Path = CONFIG
    run: Path = RUN

    def runs(self) -> bool:
        """Whether it runs: what listens on its port may be somebody else's, with nodes of the same names."""
        return Background(self.run).process() is not None


HERE = Edge()


def settings_of(config: Path = CONFIG) -> Settings:
    """The gateway's settings; those of none where there is no gateway.yaml.

    Raises:
        ServerError: it is not as it should be.
    """
    try:
        return read(config)
    except FileNotFoundError:
        return Settings()
    except (InvalidConfig, yaml.YAMLError) as error:
        raise ServerError(str(error)) from None


def control_url(settings: Settings) -> str:
    """Where the gateway of this machine is told what to do."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
        settings.ports.internal_address, settings.ports.internal_address
    )
    return f"http://{host}:{settings.ports.control}"


def known(settings: Settings, folder: Path = FOLDER) -> list[Node]:
    """The nodes behind the gateway, by its own settings or as `make serve` left them.

    Raises:
        ServerError: the file of nodes is not as it should be.
    """
    try:
        return list(settings.nodes) or node_files.read(folder / NODES.name)
    except NoNodes as error:
        raise ServerError(str(error)) from None


def name_of(local: Local, nodes: list[Node]) -> str:
    """What the gateway calls a node of this machine."""
    own = local.node().management
    return next((node.name for node in nodes if node.management == own), local.name)


def take_out(
    gateway: Gateway,
    name: str,
    say: Callable[[str], None],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Send a node nothing new, and wait for what it has in flight.

    Args:
        gateway: in front of it.
        name: the node's, as the gateway has it.
        say: told what is waited for.
        timeout_s: most seconds to wait: the longest that an answer may take.
        clock, sleep: a test brings its own.

    Returns:
        Whether its last answer is out.

    Raises:
        ManagementError: the gateway does not know it, or does not answer.
    """
    gateway.drain(name)
    sleep(MOMENT_S)
    deadline = clock() + timeout_s
    said = 0
    while (in_flight := gateway.node(name).in_flight) > 0:
        if clock() > deadline:
            say(f"{name}: {in_flight} requests have no answer after {timeout_s:g} s")
            return False
        if not said:
            say(f"{name}: {in_flight} requests are in flight; at most {timeout_s:g} s")
        said = in_flight
        sleep(LOOK_S)
    return True


def wait_routed(gateway: Gateway, name: str) -> None:
    """Wait until a node that is back gets requests.

    Raises:
        ServerError: it does not, though its models are READY.
    """
    deadline = time.monotonic() + ROUTED_S
    while not gateway.node(name).is_routed:
        if time.monotonic() > deadline:
            raise ServerError(f"{name} gets no requests after {ROUTED_S:g} s: the gateway does not find it READY")
        time.sleep(LOOK_S)


def leave(local: Local, folder: Path = FOLDER, edge: Edge = HERE) -> None:
    """Take a node of this machine out for as long as it is stopped, where a gateway stands in front of it."""
    if not edge.runs():
        # Whoever sends straight to the node is waited for by the node.
        return
    settings = settings_of(edge.config)
    gateway = Gateway(control_url(settings))
    try:
        name = name_of(local, known(settings, folder))
        if gateway.node(name).is_draining:
            return
        (local.folder / MARK).write_text(name)
        take_out(gateway, name, print, timeout_s=settings.limits.response_s)
    except ManagementError as error:
        print(f"{local.name}: {error.message}")
    finally:
        gateway.close()


def come_back(local: Local, edge: Edge = HERE) -> None:
    """Let a node that `leave` took out get requests again."""
    mark = local.folder / MARK
    if not mark.exists() or not edge.runs():
        return
    gateway = Gateway(control_url(settings_of(edge.config)))
    try:
        gateway.drain(mark.read_text(), is_draining=False)
        mark.unlink()
    except ManagementError as error:
        if error.status == 404:
            # The gateway has forgotten it, and that it was taken out.
            mark.unlink()
        else:
            print(
                f"{local.name}: taken out, and not put back: {error.message}; python -m deploy.run drain --undo does it"
            )
    finally:
        gateway.close()
