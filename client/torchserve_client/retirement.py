"""Retire a version: stop routing to it at the gateway, wait for its requests in flight, drain and unregister it.

Unregistering kills workers, and the gateway does not count requests to a node's own port, hence the drain. TorchServe
resolves the version of a request on arrival, so only requests that name the old version still reach it. A drain waits a
moment for requests that were just resolved, then until the version's queue is empty, then until its worker has
responded to all requests.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torchserve_client import archives
from torchserve_client.errors import ClientError, ManagementError, RolloutFailed
from torchserve_client.gateway import MOMENT_S, Gateway
from torchserve_client.management import POLL_S, Management
from torchserve_client.nodes import Nodes
from torchserve_client.payloads import Json

DRAIN_S = 600.0  # most seconds of a drain: five times TorchServe's default of responseTimeout, 120 s
NOTICE_S = 20.0  # seconds in which the gateway notices a change on the nodes, which it polls every two


@dataclass(frozen=True, slots=True)
class Retirement:
    """Ends versions on nodes that share one model store."""

    nodes: Nodes
    model_store: Path = Path("model_store")  # folder of the archives, in this process
    gateway: Gateway | None = None  # in front of the nodes; a canary needs one
    logs: Path = Path("logs")  # folder of the logs of a node without one in `nodes`
    report: Callable[[str], None] = lambda _: None  # receives one line for each step
    sleep: Callable[[float], None] = time.sleep  # seconds

    def _retire(self, model: str, version: str) -> None:
        """Drain and unregister a version on each node that has it; it must not be the default one."""

        def retire(name: str, management: Management) -> None:
            if (old := find(management, model, version)) is not None:
                self._drain(name, model, old)
                management.unregister(model, version)
                self._report_node(name, f"{model}: version {version} is unregistered")

        if any(self.nodes.each(lambda management: version in management.versions(model)).values()):
            with self._withdraw(model, version):
                self.nodes.each_named(retire)

    def _drain(self, name: str, model: str, old: Json) -> None:
        """Wait until a version has responded to all of its requests."""
        management, version = self.nodes.by_name[name], str(old["modelVersion"])
        self.sleep(MOMENT_S)

        def is_empty() -> bool:
            return bool(management.describe(model, version)["jobQueueStatus"]["pendingRequests"] == 0)

        if not self._wait(is_empty, DRAIN_S):
            raise RolloutFailed(
                f"{model}: requests still wait for version {version} after {DRAIN_S:g} s; it stays registered, the new "
                "version is the default"
            )
        timeout_s = float(old["responseTimeout"])
        if len(old["workers"]) == 1 and self._wait_idle(name, model, old, timeout_s):
            self._report_node(name, f"{model}: version {version} has answered everything")
        else:
            # TorchServe gets a response from a worker, or replaces it, within this time.
            words = f"has an empty queue; waiting {timeout_s:g} s for its last batches"
            self._report_node(name, f"{model}: version {version} {words}")
            self.sleep(timeout_s)

    def _wait_idle(self, name: str, model: str, old: Mapping[str, object], timeout_s: float) -> bool:
        """Wait until the only worker of a version has no requests; return False if that cannot be determined.

        A classic worker receives a request after its last batch, so the response proves that it is idle. An adaptive
        worker receives it at once and responds with the number of its other requests.
        """
        if (inference := self.nodes.inference.get(name)) is None:
            return False
        ends_s, idle = time.monotonic() + timeout_s, 0
        try:
            # Twice: responses of the worker's last exchange may still be on their way at the first.
            while idle < 2 and (left_s := ends_s - time.monotonic()) > 0:
                count = inference.in_flight(model, str(old["modelVersion"]), timeout_s=left_s)
                if count is None:
                    path = archives.find_version(self.model_store / str(old["modelUrl"]), str(old["modelVersion"]))
                    return not archives.describe(path).is_continuous
                idle = idle + 1 if count == 0 else 0
                self.sleep(0 if idle else POLL_S)
        except ClientError:
            return False
        return idle == 2

    @contextmanager
    def _withdraw(self, model: str, version: str | None) -> Iterator[None]:
        """Stop routing to a version, or all (None), until its requests in flight end; resume if the block fails."""
        if (gateway := self.gateway) is None:
            yield
            return
        named = model if version is None else f"{model}: version {version}"
        try:
            try:
                # 400: the gateway has not noticed yet that another version is the default.
                self._retry_until_noticed(partial(gateway.withdraw, model, version), 400)
                self.report(f"{named}: the gateway sends no new requests")
                self.sleep(MOMENT_S)
                # None, a number that the gateway does not know yet, is not 0.
                if not self._wait(lambda: gateway.in_flight(model, version) == 0, DRAIN_S):
                    self.report(f"{named}: requests still in flight after {DRAIN_S:g} s")
            except ManagementError as error:
                if error.status != 404:  # 404: the gateway does not have the version
                    raise
            yield
        except BaseException:
            try:  # the gateway may have withdrawn it even if its response was lost
                gateway.withdraw(model, version, is_withdrawn=False)
                self.report(f"{named}: the gateway sends requests again")
            except ManagementError as error:
                if error.status != 404:
                    self.report(f"{named}: the gateway could not resume routing: {error.message}")
            raise
        # Without this, the gateway would forget the version with its next poll, and serve a new registration later.
        with suppress(ManagementError):
            gateway.withdraw(model, version, is_withdrawn=False)

    def _retry_until_noticed(self, call: Callable[[], None], status: int) -> None:
        """Retry a call while the gateway responds with this status, until it has noticed a change on the nodes."""
        ends_s = time.monotonic() + NOTICE_S
        while True:
            try:
                return call()
            except ManagementError as error:
                if error.status != status or time.monotonic() > ends_s:
                    raise
            self.sleep(POLL_S)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Poll until `is_done`, at most this many seconds; return its last result."""
        ends_s = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > ends_s:
                return False
            self.sleep(POLL_S)
        return True

    def _resume(self, model: str, version: str) -> None:
        """Let the gateway route to a version that an unfinished rollout may have withdrawn."""
        if self.gateway is not None:
            with suppress(ManagementError):  # 404: the gateway does not have it
                self.gateway.withdraw(model, version, is_withdrawn=False)

    def _report_node(self, name: str, line: str) -> None:
        self.report(line if len(self.nodes.by_name) == 1 else f"{name}: {line}")


def find(management: Management, model: str, version: str) -> Json | None:
    """Return the description of a version; None if it is not registered."""
    return management.describe(model, version) if version in management.versions(model) else None
