"""Knows a model on a server: its addresses, whether it is ready, what it is registered with, and its counters.

Served.check -> NotServed with one line that says what to do, or the registration
"""

from dataclasses import dataclass
from typing import Any

import requests

from load.errors import NotServed
from load.generate.inputs import Input
from load.generate.target import TUNING as TARGET
from load.generate.target import Check, Target
from load.measure.exchange import OK
from load.measure.server_metrics import Counters, scrape
from torchserve_client.management import Management, ManagementError, Unreachable

# TorchServe's own defaults.
URL, MANAGEMENT_URL, METRICS_URL = (f"http://127.0.0.1:{port}" for port in (8080, 8081, 8082))

# The fields of a registration that decide over a model's speed.
REGISTERED = ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how a first request is asked."""

    # Seconds to wait for its answer: TorchServe's own default of responseTimeout.
    probe_timeout_s: float = 120.0
    # Characters of a server's words that an error repeats: two lines of a terminal.
    words: int = 200


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Served:
    """One model of a server.

    Attributes:
        model: the model's name.
        version: its version; None means the default one.
        url, management_url, metrics_url: the server's three addresses, without a slash at the end.
        token: inference key, where token authorization is on.
        management_token: management key, likewise.
        timeout_s: seconds until a request counts as unanswered.
    """

    model: str
    version: str | None = None
    url: str = URL
    management_url: str = MANAGEMENT_URL
    metrics_url: str = METRICS_URL
    token: str | None = None
    management_token: str | None = None
    timeout_s: float = TARGET.timeout_s

    @property
    def prediction_url(self) -> str:
        """The address of its predictions."""
        return "/".join([self.url, "predictions", self.model, *([self.version] if self.version else [])])

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def management(self) -> Management:
        """The server's management API."""
        return Management(self.management_url, token=self.management_token)

    def target(self, check: Check | None = None) -> Target:
        """Make the target of an attack, whose answers `check` judges."""
        return Target(self.prediction_url, self.headers, self.timeout_s, check)

    def counters(self) -> Counters | None:
        """Read the server's counters now; None where it does not show them."""
        return scrape(self.metrics_url, self.model)

    def check(self, content: Input) -> dict[str, Any]:
        """Make sure that the model answers a first request with 200.

        A management API that cannot be reached is not needed: the answer is what counts.

        Args:
            content: the first request.

        Returns:
            The fields of its registration; empty where the management API does not say.

        Raises:
            NotServed: the model does not answer, or not so.
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
            NotServed: the answer is not 200, or there is none.
        """
        with requests.Session() as session:
            session.trust_env = False
            headers = {**self.headers, "Content-Type": content.content_type}
            try:
                reply = session.post(
                    self.prediction_url, data=content.body, headers=headers, timeout=TUNING.probe_timeout_s
                )
            except requests.Timeout as error:
                raise NotServed(f"{self.prediction_url} did not answer within {TUNING.probe_timeout_s:g} s") from error
            except requests.RequestException as error:
                raise NotServed(f"nothing answers at {self.url}: start the server, or name it with --url") from error
        if reply.status_code != OK:
            words = " ".join(reply.text.split())[: TUNING.words]
            raise NotServed(f"a first request, {content.name}, was answered {reply.status_code}: {words}")
        return reply.content
