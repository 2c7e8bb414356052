"""Two gateways that the modules of this folder share: one with the defaults, and one with keys and narrow limits."""

from collections.abc import Iterator

import pytest

from deploy.gateway.settings import GatewaySettings, Key, Limits
from tests.deploy.gateway.envoy.harness import Gateway

ALICE, BOB, CAROL = "alice-0123456789", "bob-0123456789-\\%\"'", "carol-0123456789"
DAVE = "dave-0123456789-"
KEY = {"Authorization": f"Bearer {ALICE}"}
STRICT = GatewaySettings(
    keys=(
        Key(client="alice", key=ALICE),
        Key(client="bob", key=BOB, requests_per_second=0.02, burst=2),
        Key(client="dave", key=DAVE, requests_per_second=0.001),
        Key(client="carol", key=CAROL, requests_per_second=500.0),
    ),
    limits=Limits(body_bytes=1 << 20, form_bytes=1000, header_bytes=4096, headers=20),
    management=True,
)


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), GatewaySettings(limits=Limits(unresponsive_s=2.0))) as gateway:
        yield gateway


@pytest.fixture(scope="package")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("strict"), STRICT) as gateway:
        yield gateway
