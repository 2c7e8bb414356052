"""The page as users have it: a real browser, Envoy, the control process, TorchServe and trained models."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from deploy import sandbox
from deploy.models import ROOT
from deploy.run.server import Server
from tests.e2e.conftest import MOBILENET, Registrations
from tests.nightly.page.browser import KEY, visit

ESPRESSO = ROOT / "examples" / "mobilenet-v2" / "espresso.jpg"


# Alone, it waits for every archive of the session to be built, with its own.
@pytest.mark.timeout(420)
def test_models_of_a_real_server_are_tried_and_their_traffic_is_drawn(
    browser: Browser, server: Server, archive: Callable[..., str], registrations: Registrations
) -> None:
    models = (MOBILENET, "language-id", "sentence-embedding")
    for name in models:
        file = f"{name}.mar" if name == MOBILENET else archive(name)
        registrations.serve(name, file, {"batch_size": 8, "max_batch_delay_ms": 20, "workers": 1})
    keys = [{"client": "page", "key": KEY}]
    with sandbox.gateway([sandbox.node_of(server)], keys=keys) as gateway, visit(browser, gateway.http) as page:
        page.use_key()
        expect(page.page.locator("#fleet")).to_have_text("3 models ready on 1 node")
        page.show(MOBILENET)
        page.choose(ESPRESSO)
        assert page.run().startswith("espresso")
        assert next(iter(page.curl(ESPRESSO.parent))) == "espresso"
        page.show("sentence-embedding")
        assert page.run().startswith("384 numbers")
        page.show("language-id")
        latency = page.page.get_by_role("img", name="Latency over five minutes")
        # Until the metrics of a request have gone by way of TorchServe and the control process.
        for _ in range(30):
            assert page.run().startswith("French (fr)")
            page.page.wait_for_timeout(500)
            if "p50 –" not in (latency.get_attribute("aria-label") or "p50 –"):
                break
        assert "p50 –" not in (latency.get_attribute("aria-label") or "")
        sizes = page.page.get_by_role("img", name="Batch sizes")
        expect(sizes).to_have_attribute("aria-label", "Batch sizes of five minutes. 1: 100 %.")
