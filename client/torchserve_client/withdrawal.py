"""A model, or versions of it, off a gateway's routes while they are unregistered, so that no request is lost.

    found(named, nodes) -> the gateway in front of these nodes, or None
    withdrawn(gateway):  off the routes -> nothing in flight -> (unregister) -> forgotten
                                                             -> (it fails)   -> on the routes again

TorchServe leaves requests of a batch that is being filled unanswered when their model is unregistered.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torchserve_client.errors import ClientError, ManagementError
from torchserve_client.gateway import DEFAULT_URL, Gateway
from torchserve_client.management import POLL_S

# Seconds until nothing new comes after a decision of the gateway's: Envoy reads its files anew within ms.
MOMENT_S = 1.0
# Seconds in which the gateway sees what has changed on the nodes; it looks every two.
SEEN_S = 20.0
# Seconds for an answer of a gateway that nobody has named: it may be anything.
PROBE_S = 2.0


def found(named: str | None, urls: Collection[str]) -> Gateway | None:
    """Find the gateway to withdraw models from.

    Args:
        named: its control API; None for the usual address, where one counts only if it has no other nodes than these.
        urls: the management APIs of the nodes.

    Returns:
        None where there is none, or where it is known to have other nodes beside these: they would still serve.

    Raises:
        ManagementError: the gateway that was named does not answer, or is none.
    """
    gateway = Gateway(named or DEFAULT_URL, timeout_s=10.0 if named else PROBE_S)
    try:
        theirs = {_place(node.management) for node in gateway.nodes() if node.management}
    except (ClientError, LookupError, TypeError, ValueError) as error:
        gateway.close()
        if not named:
            return None
        if isinstance(error, ClientError):
            raise
        raise ManagementError(f"{named}: no gateway's answer") from error
    ours = {_place(url) for url in urls}
    # A gateway that finds its nodes by a name may know them under other addresses.
    is_theirs = not (theirs & ours and theirs - ours) if named else bool(theirs) and theirs <= ours
    if not is_theirs:
        gateway.close()
        return None
    return Gateway(gateway.url)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What is taken off the routes.

    Attributes:
        gateway: of which; None where there is none, and nothing is done.
        model: the model's name.
        versions: of it; none for all that are registered.
        timeout_s: most seconds to wait for what is in flight: the model's responseTimeout.
        say: called with one line for each step.
        sleep: waits so many seconds; a test brings one that does not.
    """

    gateway: Gateway | None
    model: str
    versions: Sequence[str] = ()
    timeout_s: float = 120.0
    say: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = field(default=time.sleep)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Keep it off the routes while the block unregisters it; where that fails, it is put back.

        Raises:
            ManagementError: the gateway refuses, or does not answer; all is as it was.
        """
        if self.gateway is None:
            yield
            return
        taken: list[str | None] = []
        try:
            for version in self.versions or (None,):
                # Where no answer comes it may have been done.
                taken.append(version)
                if not self._withdraw(self.gateway, version):
                    taken.remove(version)
            if taken:
                self.say(f"{self._named(taken)}: the gateway sends no new requests")
                self._wait_answered(self.gateway, taken)
            yield
        except BaseException:
            self._put_back(self.gateway, taken)
            raise
        # The gateway forgets what is gone when it sees so; this has it look, and one that is registered anew is served.
        with contextlib.suppress(ManagementError):
            for version in taken:
                self.gateway.restore(self.model, version)

    def _withdraw(self, gateway: Gateway, version: str | None) -> bool:
        """Withdraw it; False where the gateway does not know it."""
        deadline = time.monotonic() + SEEN_S
        while True:
            try:
                gateway.withdraw(self.model, version)
            except ManagementError as error:
                if error.status == 404:
                    return False
                # 400: it has not seen yet that another version is the default.
                if error.status != 400 or time.monotonic() > deadline:
                    raise
                self.sleep(POLL_S)
            else:
                return True

    def _wait_answered(self, gateway: Gateway, versions: Sequence[str | None]) -> None:
        self.sleep(MOMENT_S)
        deadline = time.monotonic() + self.timeout_s
        while (left := _in_flight(gateway, self.model, versions)) != 0:
            if time.monotonic() > deadline:
                count = "an unknown number of requests" if left is None else f"{left} request{'s'[: left > 1]}"
                self.say(f"{self._named(versions)}: {count} still in flight after {self.timeout_s:g} s")
                return
            self.sleep(POLL_S)

    def _put_back(self, gateway: Gateway, versions: Sequence[str | None]) -> None:
        for version in versions:
            try:
                gateway.restore(self.model, version)
            except ManagementError as error:
                if error.status != 404:
                    self.say(
                        f"{self._named([version])}: could not be put back on the gateway's routes: {error.message}"
                    )
            else:
                self.say(f"{self._named([version])}: the gateway sends requests again")

    def _named(self, versions: Sequence[str | None]) -> str:
        named = [version for version in versions if version is not None]
        return f"{self.model}: version {', '.join(named)}" if named else self.model


def _in_flight(gateway: Gateway, model: str, versions: Sequence[str | None]) -> int | None:
    """Count what is in flight; None where that is not known."""
    total = 0
    for version in versions:
        try:
            count = gateway.model(model, version).in_flight
        except ManagementError as error:
            if error.status != 404:
                raise
            count = 0
        if count is None:
            return None
        total += count
    return total


def _place(url: str) -> tuple[str, int | None]:
    """Host and port, which tell one server from another."""
    parts = urlsplit(url)
    host = (parts.hostname or "").replace("localhost", "127.0.0.1")
    return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
