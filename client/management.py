"""TorchServe's management API: register, describe, scale, unregister.

ManagementError            the server refused, with its own words
└── Unreachable            nothing answers at that address
"""

import time
from typing import Any

import requests


class ManagementError(Exception):
    """The management API refused a call.

    Attributes:
        status: HTTP status; 0 when there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(ManagementError):
    """Nothing answers at the management address."""


class NotReady(ManagementError):
    """The workers did not become ready in time."""


class Management:
    """One server's management API, over a pooled session."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        """Address a server.

        Args:
            url: of the management API, http://127.0.0.1:8081 by default of TorchServe.
            token: management key, where token authorization is on.
            timeout_s: of each call.
        """
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session = requests.Session()
        # A proxy or a .netrc of the caller's has no business between it and its own server.
        self._session.trust_env = False
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def register(
        self, url: str, *, batch_size: int, max_batch_delay_ms: int, initial_workers: int, model_name: str | None = None
    ) -> None:
        """Register an archive of the model store; its workers start in the background (see `wait_ready`).

        Raises:
            ManagementError: no such archive, or the version is registered already (409).
        """
        name = {} if model_name is None else {"model_name": model_name}
        self._call(
            "POST",
            "/models",
            url=url,
            batch_size=batch_size,
            max_batch_delay=max_batch_delay_ms,
            initial_workers=initial_workers,
            # Waiting would hold a network thread that inference needs too.
            synchronous="false",
            **name,
        )

    def models(self) -> list[str]:
        """Names of the registered models."""
        return [model["modelName"] for model in self._call("GET", "/models", limit=1000)["models"]]

    def describe(self, model: str) -> dict[str, Any]:
        """The default version of a model: batch parameters, workers and their states, queue.

        Raises:
            ManagementError: status 404 when it is not registered.
        """
        described: dict[str, Any] = self._call("GET", f"/models/{model}")[0]
        return described

    def is_ready(self, model: str) -> bool:
        """Whether at least one worker is wanted and every wanted worker is READY."""
        described = self.describe(model)
        ready: int = sum(worker["status"] == "READY" for worker in described["workers"])
        return ready >= max(1, int(described["minWorkers"]))

    def wait_ready(self, model: str, timeout_s: float) -> None:
        """Return when `is_ready`.

        Raises:
            NotReady: it was not within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while not self.is_ready(model):
            if time.monotonic() > deadline:
                raise NotReady(f"{model}: no ready worker after {timeout_s:g} s")
            time.sleep(0.1)

    def scale(self, model: str, workers: int) -> None:
        """Ask for this many workers; they start and stop in the background."""
        self._call("PUT", f"/models/{model}", min_worker=workers, max_worker=workers)

    def unregister(self, model: str) -> None:
        """Remove a model with all that waits for it: drain first.

        Raises:
            ManagementError: status 404 when it is not registered.
        """
        self._call("DELETE", f"/models/{model}")

    def _call(self, method: str, path: str, **parameters: Any) -> Any:
        try:
            response = self._session.request(method, self._url + path, params=parameters, timeout=self._timeout_s)
        except requests.RequestException as error:
            raise Unreachable(f"no TorchServe answers at {self._url} ({type(error).__name__})") from error
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        if response.status_code >= 400:
            reason = answer.get("message") or answer.get("status") or response.reason
            raise ManagementError(str(reason), response.status_code)
        return answer
