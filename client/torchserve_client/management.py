"""TorchServe's management API: register, describe, scale, unregister, and the versions of a model.

Its errors are ManagementError with the server's message, Unreachable, NotReady, and TLSFailed. It never retries: only
its reading calls would be safe to repeat.
"""

import time
from collections.abc import Callable
from math import inf
from typing import Any
from urllib.parse import urlencode

import orjson

from torchserve_client.archives import check_name
from torchserve_client.errors import (
    DeadlineExceeded,
    InvalidPayload,
    LoadFailed,
    ManagementError,
    NoConnection,
    NotReady,
    Unreachable,
)
from torchserve_client.payloads import Json, parse_json, read_reason
from torchserve_client.transport import Cert, Request, Transport, Verify, address, authorization, path_of

__all__ = ["Api", "Management", "ManagementError", "NotReady", "Unreachable"]

POLL_S = 0.1  # seconds between two polls of a server: short for a person, and no load for the server
PAGE_MODELS = 100  # models per page, the most that TorchServe 0.12.0 returns
# Models that a page repeats of the page before: pages are addressed by a number of models, which unregistering shifts.
OVERLAP = 50


class Api:
    server = "TorchServe"

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float | None = 30.0,
        verify: Verify = True,
        cert: Cert | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Prepare calls to a server; the first one connects.

        Args:
            url: address of the API.
            token: management key, if the server requires tokens.
            timeout_s: deadline of each call in seconds; None means no deadline.
            verify, cert: as in `Client`.
            transport: sends the calls; tests pass one without sockets.

        Raises:
            InvalidPayload: not the address of one server.
        """
        self.url = address(url)
        self._timeout_s = inf if timeout_s is None else timeout_s
        self._transport = transport or Transport(connections=4, verify=verify, cert=cert)
        self._headers = authorization(token)

    def close(self) -> None:
        self._transport.close()

    def _call(self, method: str, path: str, document: object = None, **parameters: object) -> Any:
        """Make a call with a query, without parameters that are None; return its parsed JSON, or None."""
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        body = b"" if document is None else orjson.dumps(document)
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        request = Request(method, f"{self.url}{path}{'?' if query else ''}{query}", body, headers)
        try:
            response = self._transport.send(request, self._timeout_s)
        except (NoConnection, DeadlineExceeded) as error:
            raise Unreachable(f"no {self.server} answers at {self.url} ({error.type})") from error
        if response.status >= 400:
            type_, message = read_reason(response)
            raise ManagementError(message, response.status, type_)
        return parse_json(response.body)


class Management(Api):
    """The management API of one server; TorchServe's default address is http://127.0.0.1:8081."""

    def register(
        self,
        archive: str,
        *,
        initial_workers: int,
        batch_size: int | None = None,
        max_batch_delay_ms: int | None = None,
        model_name: str | None = None,
        response_timeout_s: int | None = None,
        startup_timeout_s: int | None = None,
        is_known: bool = False,
    ) -> None:
        """Register an archive of the model store; its workers start in the background (see `wait_ready`).

        Args:
            archive: file name of the archive.
            initial_workers: number of workers to start.
            batch_size: most requests per batch; None means the value in the archive's model-config.yaml.
            max_batch_delay_ms: most ms that a batch waits to be filled; None means the value in model-config.yaml.
            model_name: name to register the model under; None means the archive's.
            response_timeout_s, startup_timeout_s: timeouts of a worker; values in model-config.yaml take precedence.
            is_known: whether the server has or had the model, so that its name needs no check.

        Raises:
            InvalidPayload: the name is not valid (`archives.check_name`), or a number is too small.
            ManagementError: there is no such archive, or the version is already registered (409).
        """
        if model_name is not None and not is_known:
            check_name(model_name)
        # TorchServe registers such a model and never serves it.
        if initial_workers < 0 or (batch_size is not None and batch_size < 1):
            raise InvalidPayload(
                f"{model_name or archive}: initial_workers must be 0 or more, and batch_size 1 or more, "
                f"not {initial_workers} and {batch_size}"
            )
        self._call(
            "POST",
            "/models",
            url=archive,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay_ms,
            initial_workers=initial_workers,
            model_name=model_name,
            response_timeout=response_timeout_s,
            startup_timeout=startup_timeout_s,
            synchronous="false",  # waiting would block a network thread that inference also needs
        )

    def models(self) -> list[str]:
        """Return the names of the registered models.

        Raises:
            ManagementError: the server does not respond or refuses.
        """
        names: dict[str, None] = {}
        begin = 0
        while True:
            page = self._call("GET", "/models", limit=PAGE_MODELS, next_page_token=begin)
            names |= dict.fromkeys(model["modelName"] for model in page["models"])
            if "nextPageToken" not in page:
                return list(names)
            begin = int(page["nextPageToken"]) - OVERLAP

    def all_versions(self) -> list[tuple[str, str]]:
        """Return name and version of every model, except names such as `a/b`, for which TorchServe has no path.

        Raises:
            ManagementError: the server does not respond or refuses.
        """
        return [(model, version) for model in self.models() for version in self.versions(model, is_missing_ok=True)]

    def describe(self, model: str, version: str | None = None) -> Json:
        """Return TorchServe's description of a version: batch parameters, workers, queue.

        Args:
            model: the model's name.
            version: the version; None means the default one.

        Raises:
            ManagementError: status 404 if it is not registered.
        """
        description: Json = self._call("GET", path_of("models", model, version))[0]
        return description

    def versions(self, model: str, *, is_missing_ok: bool = False) -> list[str]:
        """Return the registered versions of a model.

        Args:
            model: the model's name.
            is_missing_ok: whether to return an empty list if the model is not registered.

        Raises:
            ManagementError: status 404 if it is not registered.
        """
        try:
            return [str(each["modelVersion"]) for each in self._call("GET", path_of("models", model, "all"))]
        except ManagementError as error:
            if is_missing_ok and error.status == 404:
                return []
            raise

    def set_default(self, model: str, version: str) -> None:
        """Route requests without a version to this one.

        Raises:
            ManagementError: status 404 if it is not registered.
        """
        self._call("PUT", path_of("models", model, version, "set-default"))

    def is_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether at least one worker is wanted and every wanted worker is READY.

        Raises:
            ManagementError: status 404 if it is not registered.
        """
        description = self.describe(model, version)
        ready: int = sum(worker["status"] == "READY" for worker in description["workers"])
        return ready >= max(1, int(description["minWorkers"]))

    def wait_ready(
        self,
        model: str,
        timeout_s: float,
        version: str | None = None,
        *,
        failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Wait until `is_ready`.

        Args:
            model: the model's name.
            timeout_s: most seconds to wait.
            version: the version; None means the default one.
            failure: returns why a worker failed to load, or None if no failure is known.

        Raises:
            NotReady: the model was not ready within `timeout_s`.
            LoadFailed: a worker failed.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready(model, version):
            if (reason := failure()) is not None:
                raise LoadFailed(f"{model}: {reason}")
            if time.monotonic() > deadline:
                raise NotReady(f"{model}: no ready worker after {timeout_s:g} s")
            time.sleep(POLL_S)

    def scale(self, model: str, workers: int, version: str | None = None, *, most: int | None = None) -> None:
        """Set the number of workers, which start and stop in the background; a stopped worker drops its batch.

        Args:
            model: the model's name.
            workers: least number of workers.
            version: the version; None means the default one.
            most: most workers; None means `workers`.

        Raises:
            InvalidPayload: the number is negative, or an adaptive model would have several workers.
            ManagementError: status 404 if it is not registered.
        """
        most = workers if most is None else most
        if not 0 <= workers <= most:  # TorchServe responds to a negative number with 500 and removes every worker
            raise InvalidPayload(f"{model}: workers must be 0 or more, and `most` not less, not {workers} and {most}")
        if most > 1 and self.describe(model, version).get("continuousBatching"):
            raise InvalidPayload(
                f"{model} is adaptive and has one worker, since an idle second one would block the first: start more "
                "nodes instead (make serve NODES=2)"
            )
        self._call("PUT", path_of("models", model, version), min_worker=workers, max_worker=most)

    def unregister(self, model: str, version: str | None = None) -> None:
        """Remove a model, or a version other than the default, and drop the requests in its queue.

        Args:
            model: the model's name.
            version: the version; None means the default one.

        Raises:
            ManagementError: status 404 if it is not registered.
        """
        self._call("DELETE", path_of("models", model, version))
