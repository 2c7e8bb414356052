"""Two gateways that the modules of this folder share: one with the defaults, and one with keys and narrow limits."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from deploy.gateway.settings import GatewayLimits, GatewaySettings, Key
from tests.deploy.gateway.envoy.harness import Gateway

ALICE, BOB, CAROL, DAVE = "alice-0123456789", "bob-0123456789-\\%\"'", "carol-0123456789", "dave-0123456789-"
KEY = {"Authorization": f"Bearer {ALICE}"}
KEYS = (
    Key(client="alice", key=ALICE),
    Key(client="bob", key=BOB, requests_per_second=0.02, burst=2),
    Key(client="dave", key=DAVE, requests_per_second=0.001),
    Key(client="carol", key=CAROL, requests_per_second=500.0),
)
NARROW = GatewayLimits(body_bytes=1 << 20, form_bytes=1000, header_bytes=4096, headers=20)
STRICT = GatewaySettings(keys=KEYS, limits=NARROW, management=True)


def shared(settings: GatewaySettings, scope: Literal["module", "package"] = "module") -> Any:
    @pytest.fixture(scope=scope)
    def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
        with Gateway(tmp_path_factory.mktemp("gateway"), settings) as gateway:
            yield gateway

    return made


gateway = shared(GatewaySettings(limits=GatewayLimits(unresponsive_s=2.0)), "package")
strict = shared(STRICT, "package")
