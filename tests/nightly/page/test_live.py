"""The page as users have it: a real browser, Envoy, the control process, TorchServe and trained models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, expect

from deploy.gateway import sandbox
from deploy.gateway.sandbox import Sandbox
from deploy.models import ROOT
from deploy.server import Server
from tests.e2e.conftest import MOBILENET, Registrations
from tests.nightly.page.browser import TIMEOUT_MS, Visit, chromium, visit
from tests.nightly.page.test_page import run_python, run_shell

# Alone, the first test waits for every archive of the session to be built, with its own.
pytestmark = [pytest.mark.timeout(420)]
expect.set_options(timeout=TIMEOUT_MS)

ESPRESSO = ROOT / "examples" / "mobilenet-v2" / "espresso.jpg"
KEY = "a-key-of-sixteen-or-more"


@pytest.fixture(scope="module")
def gateway(server: Server, archive: Callable[..., str], registrations: Registrations) -> Iterator[Sandbox]:
    """A photograph's labels, a text's language and a vector, behind a gateway that asks for a key."""
    archive("language-id")
    archive("sentence-embedding")
    parameters = {"batch_size": 8, "max_batch_delay_ms": 20, "workers": 1}
    for name in (MOBILENET, "language-id", "sentence-embedding"):
        registrations.serve(name, f"{name}.mar", parameters)
    with sandbox.started([sandbox.node_of(server)], keys=[{"client": "page", "key": KEY}]) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page(gateway: Sandbox, browser: Browser) -> Iterator[Visit]:
    with ExitStack() as stack:
        made = stack.enter_context(visit(browser))
        made.page.goto(gateway.http)
        made.page.get_by_role("textbox", name="Key").fill(KEY)
        made.page.get_by_role("button", name="Use key").click()
        expect(made.page.locator("#fleet")).to_have_text("3 models ready on 1 node")
        yield made
        # The browser notes what was refused: the first question, without a key, and an option out of range.
        assert [error for error in made.errors if "Failed to load resource" not in error] == []
        assert [url for url in made.asked if not url.startswith((gateway.http, f"blob:{gateway.http}"))] == []
        assert made.page.evaluate("window.violations") == []


def test_photograph_is_recognised(page: Visit, gateway: Sandbox) -> None:
    page.open(gateway.http, MOBILENET)
    expect(page.page.locator(".what")).to_contain_text("Image classification · classic · torchserve_openvino")
    page.page.get_by_label("Photograph").set_input_files(ESPRESSO)
    assert page.run().startswith("espresso")
    expect(page.page.locator(".timing")).to_contain_text("model")
    assert next(iter(run_shell(page.call("curl"), ESPRESSO.parent, KEY=KEY))) == "espresso"
    assert run_python(page.call("Python"), ESPRESSO.parent, KEY=KEY).startswith("{'espresso'")


def test_options_reach_the_model_with_their_types(page: Visit, gateway: Sandbox) -> None:
    page.open(gateway.http, MOBILENET)
    page.page.get_by_label("Photograph").set_input_files(ESPRESSO)
    page.page.get_by_text("Options", exact=True).click()
    page.page.get_by_label("top_k").fill("2")
    page.run()
    assert page.page.locator(".bars li").count() == 2
    page.page.get_by_label("top_k").fill("0")
    page.run()
    expect(page.page.locator(".error")).to_contain_text("400 UnknownOption")


def test_language_is_named(page: Visit, gateway: Sandbox) -> None:
    page.open(gateway.http, "language-id")
    assert page.run().startswith("French (fr)")
    page.page.get_by_role("textbox", name="Text").fill("오늘 날씨가 좋네요.")
    page.page.get_by_role("button", name="Run").click()
    expect(page.page.locator(".answer")).to_contain_text("Korean (ko)")


def test_embedding_is_drawn(page: Visit, gateway: Sandbox) -> None:
    page.open(gateway.http, "sentence-embedding")
    assert page.run().startswith("384 numbers")
    assert page.page.locator(".vector rect").count() == 384


def test_charts_show_the_traffic(page: Visit, gateway: Sandbox) -> None:
    page.open(gateway.http, "language-id")
    latency = page.page.get_by_role("img", name="Latency over five minutes")
    sizes = page.page.get_by_role("img", name="Batch sizes")
    # Until the metrics of a request have gone by way of TorchServe and the control process.
    for _ in range(30):
        page.run()
        page.page.wait_for_timeout(500)
        if "p50 –" not in (latency.get_attribute("aria-label") or "p50 –"):
            break
    assert "p50 –" not in (latency.get_attribute("aria-label") or "")
    expect(sizes).to_have_attribute("aria-label", "Batch sizes of five minutes. 1: 100 %.")
    # The histogram of whole requests is there.
    expect(page.page.locator(".aside", has_text="five minutes")).to_have_text("the last five minutes")
