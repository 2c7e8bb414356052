"""Envoy, as the control process sees it: its files and its admin socket."""

from collections.abc import Mapping
from pathlib import Path

from deploy.gateway.envoy import admin, files
from deploy.gateway.envoy.process import Envoy, Traffic
from deploy.gateway.settings import Settings
from deploy.gateway.state import Fleet


class EnvoyEdge:
    """The Envoy of a run folder, whether it runs or not."""

    def __init__(self, run: Path) -> None:
        """Address it."""
        self._run = run
        self._envoy = Envoy(run)

    def write(self, settings: Settings, fleet: Fleet) -> None:
        """Write what changed of its files."""
        files.write(settings, fleet, self._run)

    def traffic(self) -> Mapping[str, Traffic]:
        """Node -> what it has in flight, and whether it gets more.

        Raises:
            ConnectionError: Envoy does not answer.
        """
        try:
            return self._envoy.traffic()
        except admin.NoAnswer as error:
            raise ConnectionError(str(error)) from None

    def requests(self) -> Mapping[str, Mapping[str, int]]:
        """Cluster -> node -> requests in flight.

        Raises:
            ConnectionError: Envoy does not answer.
        """
        try:
            return self._envoy.requests()
        except admin.NoAnswer as error:
            raise ConnectionError(str(error)) from None

    def prometheus(self) -> str:
        """Its metrics.

        Raises:
            ConnectionError: Envoy does not answer.
        """
        try:
            return self._envoy.prometheus()
        except admin.NoAnswer as error:
            raise ConnectionError(str(error)) from None
