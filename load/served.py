"""A model on a server: whether it answers, and what it is registered with."""

from dataclasses import dataclass
from typing import Any

import requests

from load.errors import LoadError
from load.generate import TIMEOUT_S, Target
from load.inputs import Input
from load.results import OK
from torchserve_client.management import Management, ManagementError, Unreachable

# TorchServe's own defaults.
URL, MANAGEMENT_URL = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
# The fields of a registration that decide on a model's speed.
REGISTERED = ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")
# Characters of a server's message that an error repeats: two lines of a terminal.
MESSAGE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Served:
    """One model of a server.

    Attributes:
        model, version: the model's name and version; None means its default version.
        url, management_url: addresses of the inference and management APIs, without a slash at the end.
        token, management_token: keys of the two, where token authorization is on.
        timeout_s: seconds until a request counts as unanswered.
    """

    model: str
    version: str | None = None
    url: str = URL
    management_url: str = MANAGEMENT_URL
    token: str | None = None
    management_token: str | None = None
    timeout_s: float = TIMEOUT_S

    @property
    def target(self) -> Target:
        """The address of its predictions."""
        url = "/".join([self.url, "predictions", self.model, *([self.version] if self.version else [])])
        return Target(url, {"Authorization": f"Bearer {self.token}"} if self.token else {}, self.timeout_s)

    @property
    def management(self) -> Management:
        """The server's management API."""
        return Management(self.management_url, token=self.management_token)

    def check(self, content: Input) -> dict[str, Any]:
        """Make sure that the model answers `content` with 200.

        Returns:
            The fields of its registration; empty where the management API does not answer, which is not needed.

        Raises:
            LoadError: the model does not answer, or is not registered or ready.
        """
        registration: dict[str, Any] = {}
        try:
            registration = self._registration()
        except Unreachable:
            pass
        except ManagementError as error:
            raise LoadError(f"the management API at {self.management_url} refuses: {error}") from error
        self.ask(content)
        return registration

    def _registration(self) -> dict[str, Any]:
        try:
            described = self.management.describe(self.model, self.version)
        except ManagementError as error:
            if error.status != 404:
                raise
            names = ", ".join(self.management.models()) or "none"
            what = f"version {self.version} of model {self.model}" if self.version else f"model {self.model}"
            raise LoadError(f"{what} is not registered at {self.management_url}; registered: {names}") from error
        if not self.management.is_ready(self.model, self.version):
            raise LoadError(
                f"model {self.model} has no ready worker yet: wait, or see {self.management_url}/models/{self.model}"
            )
        return {name: described[name] for name in REGISTERED if name in described}

    def ask(self, content: Input) -> bytes:
        """Send one request by itself and return its answer.

        Raises:
            LoadError: the answer is not 200, or there is none.
        """
        target = self.target
        with requests.Session() as session:
            # No proxy of the environment stands between a generator and its server.
            session.trust_env = False
            headers = {**target.headers, "Content-Type": content.content_type}
            try:
                reply = session.post(target.url, data=content.body, headers=headers, timeout=self.timeout_s)
            except requests.Timeout as error:
                raise LoadError(f"{target.url} did not answer within {self.timeout_s:g} s") from error
            except requests.RequestException as error:
                raise LoadError(f"nothing answers at {self.url}: start the server, or name it with --url") from error
        if reply.status_code != OK:
            message = " ".join(reply.text.split())[:MESSAGE_CHARACTERS]
            raise LoadError(f"a first request, {content.name}, was answered {reply.status_code}: {message}")
        return reply.content
