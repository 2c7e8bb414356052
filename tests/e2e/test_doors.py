"""TorchServe itself by HTTP, and the gateway in front of it by HTTP and gRPC, and with TLS.

The rows of many connections are played by night.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.nodes.run.server import Server
from tests.client.conftest import Certificates
from tests.doors import places
from tests.doors.door import MODEL, Door, ask_grpc, hold
from tests.doors.kinds import Row
from tests.doors.rows import GRPC, LIGHT, OVER_TLS
from tests.e2e.conftest import Registrations


@pytest.fixture(scope="module")
def served(
    server: Server, model_store: Path, registrations: Registrations, tmp_path_factory: pytest.TempPathFactory
) -> Server:
    archive = shutil.copy(places.archive(tmp_path_factory.mktemp("door")), model_store)
    registrations.serve(MODEL, Path(archive).name, {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
    return server


@pytest.fixture(scope="module")
def gateway(served: Server) -> Iterator[Door]:
    with places.gateway(served) as door:
        yield door


@pytest.fixture(scope="module")
def tls(served: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    made = Certificates(tmp_path_factory.mktemp("tls"))
    tls = {"certificate": str(made.pem("server")), "key": str(made.key("server"))}
    with places.gateway(served, tls, str(made.pem("ca"))) as door:
        yield door


@pytest.mark.parametrize("row", LIGHT, ids=lambda row: row.name)
def test_torchserve_keeps_the_row(row: Row, served: Server) -> None:
    hold(row, places.torchserve(served))


@pytest.mark.parametrize("row", [*LIGHT, *GRPC], ids=lambda row: row.name)
def test_gateway_keeps_the_row(row: Row, gateway: Door) -> None:
    hold(row, gateway)


@pytest.mark.parametrize("row", OVER_TLS, ids=lambda row: row.name)
def test_gateway_keeps_the_row_over_tls(row: Row, tls: Door) -> None:
    hold(row, tls)
    ask_grpc(tls)
