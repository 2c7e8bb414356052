"""TorchServe and the gateway in front of it: the rows of many connections."""

import pytest

from deploy.nodes.run.server import Server
from tests.doors import places
from tests.doors.door import Door, hold
from tests.doors.kinds import Row
from tests.doors.rows import HEAVY
from tests.e2e.test_doors import gateway, served, tls

__all__ = ["gateway", "served", "tls"]


@pytest.mark.parametrize("row", HEAVY, ids=lambda row: row.name)
def test_torchserve_keeps_the_row(row: Row, served: Server) -> None:
    hold(row, places.torchserve(served))


@pytest.mark.parametrize("row", HEAVY, ids=lambda row: row.name)
def test_gateway_keeps_the_row(row: Row, gateway: Door) -> None:
    hold(row, gateway)


@pytest.mark.parametrize("row", HEAVY, ids=lambda row: row.name)
def test_gateway_keeps_the_row_over_tls(row: Row, tls: Door) -> None:
    hold(row, tls)
