"""A model on a server: whether it answers, and its registration."""

from dataclasses import dataclass
from typing import Any

import requests

from load.errors import LoadError
from load.generate import TIMEOUT_S, Target
from load.inputs import Input
from load.results import OK
from torchserve_client.errors import ClientError, Unreachable
from torchserve_client.management import Management

# The fields of a registration that decide on a model's speed.
REGISTERED = ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")
# Characters of a server's message that an error repeats: two lines of a terminal.
MESSAGE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Served:
    """One model of a server; the addresses, TorchServe's own by default, are without a slash at the end."""

    model: str
    version: str | None = None  # None means the default one
    url: str = "http://127.0.0.1:8080"
    management_url: str = "http://127.0.0.1:8081"
    token: str | None = None  # keys, where token authorization is on
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

    def registration(self) -> dict[str, Any]:
        """Return what the model is registered with; nothing where the management API does not answer.

        Raises:
            LoadError: the model is not registered or not ready, or the management API refuses.
        """
        management = self.management
        try:
            described = management.describe(self.model, self.version)
            if not management.is_ready(self.model, self.version):
                raise LoadError(f"{self.model} has no ready worker: see {self.management_url}/models/{self.model}")
        except Unreachable:
            return {}
        except ClientError as error:
            if error.status != 404:
                raise LoadError(f"the management API at {self.management_url} refuses: {error}") from error
            registered = ", ".join(management.models()) or "none"
            raise LoadError(f"model {self.model} is not registered; registered: {registered}") from error
        return {name: described[name] for name in REGISTERED if name in described}

    def ask(self, content: Input) -> bytes:
        """Send one request by itself and return its answer; LoadError where it is not 200, or there is none."""
        target = self.target
        with requests.Session() as session:
            # Proxies of the environment are ignored.
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
