"""A model on a server: its addresses, whether it is ready, what it is registered with, and its counters.

Served.check -> NotServed with one line that says what to do, or the registration
"""

from dataclasses import dataclass
from typing import Any

import requests

from load.errors import NotServed
from load.generate.inputs import Input
from load.generate.target import Check, Target
from load.measure.exchange import OK
from load.measure.server_metrics import Counters, scrape
from torchserve_client.management import Management, ManagementError, Unreachable

# TorchServe's own defaults.
URL, MANAGEMENT_URL, METRICS_URL = (f"http://127.0.0.1:{port}" for port in (8080, 8081, 8082))

PROBE_TIMEOUT_S = 120.0
# Of a registration, what decides over its speed.
REGISTERED = ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")
WORDS = 200


@dataclass(frozen=True, slots=True)
class Served:
    """One model.

    Attributes:
        model: its name.
        version: None for the default one.
        url, management_url, metrics_url: the server's three addresses, without a slash at the end.
        token: inference key, where token authorization is on.
        management_token: the management key.
        timeout_s: of a request.
    """

    model: str
    version: str | None = None
    url: str = URL
    management_url: str = MANAGEMENT_URL
    metrics_url: str = METRICS_URL
    token: str | None = None
    management_token: str | None = None
    timeout_s: float = 120.0

    @property
    def prediction_url(self) -> str:
        """Where it answers."""
        return "/".join([self.url, "predictions", self.model, *([self.version] if self.version else [])])

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def management(self) -> Management:
        """The server's management API."""
        return Management(self.management_url, token=self.management_token)

    def target(self, check: Check | None = None) -> Target:
        """Where an attack sends its requests."""
        return Target(self.prediction_url, self.headers, self.timeout_s, check)

    def counters(self) -> Counters | None:
        """The server's counters now; None where it does not show them."""
        return scrape(self.metrics_url, self.model)

    def check(self, content: Input) -> dict[str, Any]:
        """Make sure that it answers 200.

        A management API that cannot be reached is not needed: the answer to a first request is what counts.

        Returns:
            What it is registered with; empty where the management API does not say.

        Raises:
            NotServed: it does not.
        """
        registration: dict[str, Any] = {}
        try:
            registration = self._registration()
        except Unreachable:
            pass
        except ManagementError as error:
            raise NotServed(f"the management API at {self.management_url} refuses: {error}") from error
        self.ask(content)
        return registration

    def _registration(self) -> dict[str, Any]:
        try:
            described = self.management.describe(self.model)
        except ManagementError as error:
            if error.status != 404:
                raise
            names = ", ".join(self.management.models()) or "none"
            raise NotServed(
                f"model {self.model} is not registered at {self.management_url}; registered: {names}"
            ) from error
        if not self.management.is_ready(self.model):
            raise NotServed(
                f"model {self.model} has no ready worker yet: wait, or see {self.management_url}/models/{self.model}"
            )
        return {name: described[name] for name in REGISTERED if name in described}

    def ask(self, content: Input) -> bytes:
        """Send one request by itself and return the answer.

        Raises:
            NotServed: it was not answered 200.
        """
        with requests.Session() as session:
            session.trust_env = False
            headers = {**self.headers, "Content-Type": content.content_type}
            try:
                reply = session.post(self.prediction_url, data=content.body, headers=headers, timeout=PROBE_TIMEOUT_S)
            except requests.Timeout as error:
                raise NotServed(f"{self.prediction_url} did not answer within {PROBE_TIMEOUT_S:g} s") from error
            except requests.RequestException as error:
                raise NotServed(f"nothing answers at {self.url}: start the server, or name it with --url") from error
        if reply.status_code != OK:
            words = " ".join(reply.text.split())[:WORDS]
            raise NotServed(f"a first request, {content.name}, was answered {reply.status_code}: {words}")
        return reply.content
