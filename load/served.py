"""A model on a server: its registration, and whether it responds."""

from dataclasses import dataclass

from load import LoadError
from load.generate import TIMEOUT_S, Target
from load.inputs import Input
from load.results import OK
from torchserve_client.errors import ClientError, DeadlineExceeded, Unreachable
from torchserve_client.management import Management
from torchserve_client.payloads import Json
from torchserve_client.transport import Request, Transport, authorization, path_of

# The fields of a registration that determine a model's speed.
REGISTERED = ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")
MESSAGE_CHARACTERS = 200  # characters of a server's message that an error repeats: two lines of a terminal


@dataclass(frozen=True, slots=True)
class Served:
    """One model of a server; the addresses, TorchServe's own by default, are without a slash at the end."""

    model: str
    version: str | None = None  # None means the default one
    url: str = "http://127.0.0.1:8080"
    management_url: str = "http://127.0.0.1:8081"
    token: str | None = None  # keys, if the server requires tokens
    management_token: str | None = None
    timeout_s: float = TIMEOUT_S

    @property
    def target(self) -> Target:
        url = self.url + path_of("predictions", self.model, self.version)
        return Target(url, authorization(self.token), self.timeout_s)

    @property
    def management(self) -> Management:
        return Management(self.management_url, token=self.management_token)

    def registration(self) -> Json:
        """Return the model's registration; empty if no management API responds; LoadError if it is not ready."""
        management = self.management
        try:
            description = management.describe(self.model, self.version)
            if not management.is_ready(self.model, self.version):
                raise LoadError(f"{self.model} has no ready worker: see {self.management_url}/models/{self.model}")
        except Unreachable:
            return {}
        except ClientError as error:
            if error.status != 404:
                raise LoadError(f"the management API at {self.management_url} refuses: {error}") from error
            registered = ", ".join(management.models()) or "none"
            raise LoadError(f"model {self.model} is not registered; registered: {registered}") from error
        return {name: description[name] for name in REGISTERED if name in description}

    def send(self, content: Input) -> bytes:
        """Send one request by itself and return the response; LoadError unless its status is 200."""
        target, transport = self.target, Transport(connections=1)
        headers = {**target.headers, "Content-Type": content.content_type}
        try:
            response = transport.send(Request("POST", target.url, content.body, headers), self.timeout_s)
        except DeadlineExceeded as error:
            raise LoadError(f"{target.url} did not respond within {self.timeout_s:g} s") from error
        except ClientError as error:
            raise LoadError(f"nothing answers at {self.url}: start the server, or name it with --url") from error
        finally:
            transport.close()
        if response.status != OK:
            message = " ".join(response.body.decode("utf-8", "replace").split())[:MESSAGE_CHARACTERS]
            raise LoadError(f"the response to a first request, {content.name}, was {response.status}: {message}")
        return response.body
