"""TorchServe's management API: register, describe, scale, unregister, and the versions of a model.

Its errors are ManagementError with the server's own words, Unreachable, NotReady, and TLSFailed. Nothing is tried
again: of these calls only reading is safe to repeat.
"""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

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
from torchserve_client.payloads import parsed, reason
from torchserve_client.transport import Cert, Outgoing, Transport, Verify, address, authorization

__all__ = ["Api", "Management", "ManagementError", "NotReady", "Unreachable"]

# Seconds between two looks at a server that is waited for, chosen: short for a person, and no load for the server.
POLL_S = 0.1
# Models of a page, the most that TorchServe 0.12.0 returns; and of those, the models of the page before. A page begins
# at a number of models, so that unregistering one moves the others.
PAGE_MODELS, OVERLAP = 100, 50


class Api:
    """The calls of an API for operators, over pooled connections."""

    server = "TorchServe"

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        verify: Verify = True,
        cert: Cert | None = None,
        transport: Transport | None = None,
    ) -> None:
        """Address a server.

        Args:
            url: address of the API.
            token: management key, where token authorization is on.
            timeout_s: deadline of each call in seconds.
            verify, cert: the same as those of `Client`.
            transport: carries the calls; a test brings one that uses no sockets.

        Raises:
            InvalidPayload: the address is not that of one server.
        """
        self.url = address(url)
        self._timeout_s = timeout_s
        self._transport = transport or Transport(connections=4, verify=verify, cert=cert)
        self._headers = authorization(token)

    def close(self) -> None:
        """Release every connection."""
        self._transport.close()

    def _call(self, method: str, path: str, document: Any = None, **parameters: Any) -> Any:
        """Make a call; return its parsed answer, None where that is no JSON.

        Args:
            method, path: of the request.
            document: its body as JSON; None means no body.
            parameters: its query, without those that are None.
        """
        query = urlencode({name: value for name, value in parameters.items() if value is not None})
        body = b"" if document is None else orjson.dumps(document)
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        request = Outgoing(method, f"{self.url}{path}{'?' if query else ''}{query}", body, headers)
        try:
            incoming = self._transport.send(request, self._timeout_s)
        except (NoConnection, DeadlineExceeded) as error:
            raise Unreachable(f"no {self.server} answers at {self.url} ({error.type})") from error
        if incoming.status >= 400:
            type_, message = reason(incoming)
            raise ManagementError(message, incoming.status, type_)
        return parsed(incoming.body)


class Management(Api):
    """One server's management API, which TorchServe has at http://127.0.0.1:8081 where nothing else is configured."""

    def register(
        self,
        url: str,
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
            url: the archive's file name.
            initial_workers: number of workers to start.
            batch_size: most requests of a batch; None takes what the archive's model-config.yaml says.
            max_batch_delay_ms: most ms that a batch waits to be filled; None likewise.
            model_name: name to register it under; None takes the archive's own.
            response_timeout_s, startup_timeout_s: of its workers; what a model-config.yaml in the archive says wins.
            is_known: whether the server has or had the model: its name is not checked again.

        Raises:
            InvalidPayload: the name is not valid (`archives.check_name`), or a number is too small.
            ManagementError: there is no such archive, or the version is registered already (409).
        """
        if model_name is not None and not is_known:
            check_name(model_name)
        # TorchServe registers such a model and never serves it.
        if initial_workers < 0 or (batch_size is not None and batch_size < 1):
            raise InvalidPayload(f"{model_name or url}: initial_workers must be 0 or more, and batch_size 1 or more")
        self._call(
            "POST",
            "/models",
            url=url,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay_ms,
            initial_workers=initial_workers,
            model_name=model_name,
            response_timeout=response_timeout_s,
            startup_timeout=startup_timeout_s,
            # Waiting would hold a network thread that inference needs too.
            synchronous="false",
        )

    def models(self) -> list[str]:
        """List the names of the registered models."""
        names: dict[str, None] = {}
        begin = 0
        while True:
            page = self._call("GET", "/models", limit=PAGE_MODELS, next_page_token=begin)
            names |= dict.fromkeys(model["modelName"] for model in page["models"])
            if "nextPageToken" not in page:
                return list(names)
            begin = int(page["nextPageToken"]) - OVERLAP

    def registered(self) -> list[tuple[str, str]]:
        """List name and version of every model, without names such as `a/b`, which TorchServe finds on no path."""
        return [(model, version) for model in self.models() for version in self.versions(model, is_missing_ok=True)]

    def describe(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Describe a version of a model, or the default one, as TorchServe does: batch parameters, workers, queue.

        Raises:
            ManagementError: status 404 when it is not registered.
        """
        described: dict[str, Any] = self._call("GET", _path(model, version))[0]
        return described

    def versions(self, model: str, *, is_missing_ok: bool = False) -> list[str]:
        """List the registered versions of a model.

        Raises:
            ManagementError: status 404 when it is not registered, unless `is_missing_ok`.
        """
        try:
            return [str(each["modelVersion"]) for each in self._call("GET", _path(model, "all"))]
        except ManagementError as error:
            if is_missing_ok and error.status == 404:
                return []
            raise

    def set_default(self, model: str, version: str) -> None:
        """Send requests that name no version to this one from now on."""
        self._call("PUT", f"{_path(model, version)}/set-default")

    def is_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether at least one worker is wanted and every wanted worker is READY."""
        described = self.describe(model, version)
        ready: int = sum(worker["status"] == "READY" for worker in described["workers"])
        return ready >= max(1, int(described["minWorkers"]))

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
            version: the version; None waits for the default one.
            failure: why a worker has failed to load, where that can be known; None while none has.

        Raises:
            NotReady: the model was not ready within `timeout_s`.
            LoadFailed: a worker has failed.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready(model, version):
            if (reason := failure()) is not None:
                raise LoadFailed(f"{model}: {reason}")
            if time.monotonic() > deadline:
                raise NotReady(f"{model}: no ready worker after {timeout_s:g} s")
            time.sleep(POLL_S)

    def scale(self, model: str, workers: int, version: str | None = None, *, most: int | None = None) -> None:
        """Ask for this many workers, which start and stop in the background; a worker that stops drops its batch.

        Args:
            model: the model's name.
            workers: how many there should be.
            version: the version; None means the default one.
            most: how many there may be, where that is more.

        Raises:
            InvalidPayload: the number is negative, or an adaptive model would get several workers.
        """
        most = workers if most is None else most
        # TorchServe answers a negative number with 500 and removes every worker.
        if not 0 <= workers <= most:
            raise InvalidPayload(f"{model}: the number of workers must be 0 or more, and at most the number allowed")
        if most > 1 and self.describe(model, version).get("continuousBatching"):
            raise InvalidPayload(
                f"{model} is adaptive and has one worker: TorchServe would keep it waiting while another one is idle, "
                "so that a second one does not load. Start more nodes instead (make serve NODES=2)"
            )
        self._call("PUT", _path(model, version), min_worker=workers, max_worker=most)

    def unregister(self, model: str, version: str | None = None) -> None:
        """Remove a model, or a version other than the default, with every request that waits for it: drain it first.

        Raises:
            ManagementError: status 404 when it is not registered.
        """
        self._call("DELETE", _path(model, version))


def _path(model: str, version: str | None) -> str:
    return "/models/" + "/".join(quote(part, safe="") for part in (model, version) if part is not None)
