"""The page in a real browser, with a canned gateway behind it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from deploy.gateway.state import Fleet
from deploy.models import ROOT
from tests.deploy.gateway.canned import MODELS, Site
from tests.nightly.page.browser import TIMEOUT_MS, Visit, chromium, visit

expect.set_options(timeout=TIMEOUT_MS)

CAT = ROOT / "examples" / "resnet-152" / "cat.jpg"
KEY = "a-key-of-sixteen-or-more"
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    with Site() as started:
        yield started


@pytest.fixture
def site(running: Site) -> Site:
    """As it was at first."""
    running.failure, running.headers, running.pieces = None, {}, []
    running.answers = {name: model.answer for name, model in MODELS.items()}
    running.bodies.clear()
    return running


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Visit]:
    """A visit that must end without errors of its own, or requests of others."""
    with visit(browser) as made:
        yield made
        assert made.errors == []
        assert [url for url in made.asked if not url.startswith((site.url, f"blob:{site.url}"))] == []
        assert made.page.evaluate("window.violations") == []


# -- what is shown -----------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_state(page: Visit, site: Site) -> None:
    page.open(site.url)
    listed = {
        item.get_attribute("data-model"): item.locator(".unseen").inner_text()
        for item in page.page.locator("#models li").all()
    }
    assert listed == {
        **dict.fromkeys(MODELS, "Ready"),
        "text-classification": "2 of 3 workers ready",
        "colours": "No workers",
    }
    assert page.page.locator("#fleet").inner_text() == "6 of 8 models ready on 2 nodes"


def test_facts_are_those_of_the_fleet(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    rows = page.page.locator("section[aria-label=Facts] tbody tr").all_inner_texts()
    assert [[cell.strip() for cell in row.split("\t")] for row in rows] == [
        ["1.0 (default)", "node-0", "Ready", "1 of 1", "8", "20 ms"],
        ["1.0 (default)", "node-1", "Ready", "1 of 1", "8", "20 ms"],
        ["2.0, 5 % canary", "node-1", "Ready", "1 of 1", "8", "20 ms"],
        ["image", "BYTES", "[-1]"],
        ["label", "BYTES", "[-1, -1]"],
        ["score", "FP32", "[-1, -1]"],
        ["top_k", "integer", "5", "the most labels of its answer."],
    ]


def test_charts_tell_the_last_five_minutes(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    charts = page.page.locator(".chart svg")
    said = [chart.get_attribute("aria-label") or "" for chart in charts.all()]
    assert [text.split(" over ")[0].split(" of ")[0] for text in said] == [
        "Requests",
        "Latency",
        "Batch sizes",
        "Queue",
        "Refusals and errors",
    ]
    # 0.1, 0.15, 0.25, 0.45 and 0.05 of the micro-batches.
    assert said[2] == "Batch sizes of five minutes. 1: 10 %, 2: 15 %, 4: 25 %, 8: 45 %, 16: 5 %."
    assert "Now: p50 43" in said[1]
    # A place of the past is read by pointing at it: there something was refused.
    refused = page.page.locator(".chart").nth(4)
    refused.scroll_into_view_if_needed()
    expect(refused.locator(".now")).to_contain_text("0/s refused")
    box = refused.locator(".plot").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] * 0.58, box["y"] + 30)
    expect(refused.locator(".now")).to_contain_text("2.5/s refused")


def test_models_come_and_go_without_a_reload(page: Visit, site: Site) -> None:
    page.open(site.url, "translation")
    page.page.get_by_role("textbox", name="Text").fill("kept")
    whole = site.served
    try:
        site.served = replace(whole, models={"translation": whole.models["translation"]})
        expect(page.page.locator("#models li")).to_have_count(1)
        site.served = Fleet()
        expect(page.page.locator("#main")).to_contain_text("Models appear here")
    finally:
        site.served = whole
    expect(page.page.locator("#models li")).to_have_count(8)


def test_what_was_typed_is_kept_while_another_model_is_looked_at(page: Visit, site: Site) -> None:
    page.open(site.url, "translation")
    page.page.get_by_role("textbox", name="Text").fill("kept")
    page.page.get_by_role("link", name="language-id").click()
    expect(page.page.locator("main h2")).to_have_text("language-id")
    page.page.get_by_role("link", name="translation").click()
    expect(page.page.get_by_role("textbox", name="Text")).to_have_value("kept")


# -- trying it ---------------------------------------------------------------------------------------------------


def test_photograph_is_sent_as_it_is_and_answered_with_bars(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    page.page.get_by_label("Photograph").set_input_files(CAT)
    assert page.run().split("\n")[:4] == ["Egyptian cat", "61.2%", "tabby", "20.1%"]
    assert site.bodies == [("image/jpeg", CAT.read_bytes())]
    widths = page.page.locator(".fill").evaluate_all("bars => bars.map((bar) => bar.style.width)")
    assert widths[0] == "61.23%"
    expect(page.page.locator(".timing")).to_contain_text("decode 1.6 · wait 2.4 · model 11.2 · batch of 8")


def test_photograph_can_be_dropped(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    transfer = page.page.evaluate_handle(
        """() => {
          const moved = new DataTransfer();
          moved.items.add(new File(["no photograph"], "a b.jpg"));
          return moved;
        }"""
    )
    page.page.locator(".drop").dispatch_event("drop", {"dataTransfer": transfer})
    assert page.run().startswith("Egyptian cat")
    assert site.bodies == [("application/octet-stream", b"no photograph")]
    assert "-T 'a b.jpg'" in page.call("curl")


def test_options_go_with_a_photograph_as_a_form(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    page.page.get_by_label("Photograph").set_input_files(CAT)
    page.page.get_by_text("Options", exact=True).click()
    page.page.get_by_label("top_k").fill("3")
    page.run()
    ((content_type, body),) = site.bodies
    assert content_type == "multipart/form-data"
    assert CAT.read_bytes() in body and b'name="top_k"\r\n\r\n3\r\n' in body


@pytest.mark.parametrize(
    ("model", "sent", "answered"),
    [
        ("language-id", b"Il fait beau aujourd'hui.", ["French (fr)", "98.7%", "Occitan (oc)", "0.4%"]),
        ("text-classification", b"A warm, funny film that I would gladly see again.", ["POSITIVE", "100%"]),
        ("sentence-embedding", b"The river rose by a metre after the storm.", ["384 numbers", "length 0.698"]),
        ("translation", b"Where is the train station?", ["Où est la gare ?"]),
    ],
)
def test_text_is_sent_as_it_is_and_answered_by_its_task(
    page: Visit, site: Site, model: str, sent: bytes, answered: list[str]
) -> None:
    page.open(site.url, model)
    assert [line for line in page.run().split("\n") if line][: len(answered)] == answered
    assert site.bodies == [("text/plain", sent)]


def test_question_has_its_answer_marked_in_the_context(page: Visit, site: Site) -> None:
    page.open(site.url, "question-answering")
    assert page.run().startswith("Ada Lovelace91.2%")
    assert page.page.locator(".answer mark").all_inner_texts() == ["Ada Lovelace"]
    ((_, body),) = site.bodies
    assert json.loads(body).keys() == {"question", "context"}


def test_options_go_with_a_text_as_json_of_their_types(page: Visit, site: Site) -> None:
    page.open(site.url, "translation")
    page.page.get_by_text("Options", exact=True).click()
    page.page.get_by_label("num_beams").fill("4")
    page.page.get_by_label("tgt_lang").fill("fra_Latn")
    page.page.get_by_label("early_stopping").select_option("true")
    page.run()
    sent = {"text": "Where is the train station?", "tgt_lang": "fra_Latn", "num_beams": 4, "early_stopping": True}
    assert [(kind, json.loads(body)) for kind, body in site.bodies] == [("application/json", sent)]


def test_entities_are_marked_where_they_are_in_characters(page: Visit, site: Site) -> None:
    """Python counts an emoji as one character, JavaScript as two."""
    site.answers["token-classification"] = [{"entity_group": "PER", "score": 0.99, "word": "Ada", "start": 4, "end": 7}]
    page.open(site.url, "token-classification")
    page.page.get_by_role("textbox", name="Text").fill("🙂🙂: Ada sings")
    page.run()
    assert page.page.locator(".answer mark").evaluate_all("marks => marks.map((one) => one.firstChild.data)") == ["Ada"]
    assert page.answer() == "🙂🙂: Ada PER sings"


def test_version_is_asked_for_where_one_is_chosen(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    page.page.get_by_label("Version", exact=True).select_option("2.0")
    page.page.get_by_label("Photograph").set_input_files(CAT)
    page.run()
    assert "POST /predictions/resnet-152/2.0" in site.requests
    assert "/predictions/resnet-152/2.0" in page.call("curl")
    assert 'version="2.0"' in page.call("Python")


def test_markup_in_an_answer_stays_text(page: Visit, site: Site) -> None:
    evil = '<img src=x onerror="window.hit = 1"><script>window.hit = 1</script>'
    site.answers["language-id"] = [{"label": evil, "score": 0.5}]
    site.answers["translation"] = {"translation_text": evil}
    site.answers["resnet-152"] = {"unexpected": {"of": evil}}
    for model in ("language-id", "translation"):
        page.open(site.url, model)
        assert evil in page.run()
    assert page.page.evaluate("window.hit") is None
    assert page.page.locator(".answer img, .answer script").count() == 0


def test_answer_of_another_form_is_shown_as_json(page: Visit, site: Site) -> None:
    site.answers["language-id"] = {"anything": [1, None]}
    page.open(site.url, "language-id")
    assert json.loads(page.run()) == {"anything": [1, None]}


def test_model_that_says_nothing_of_itself_is_sent_what_the_user_likes(page: Visit, site: Site) -> None:
    site.answers["colours"] = {"red": [1, 2.5, -3], "name": "x"}
    page.open(site.url, "colours")
    assert page.run() == '{\n  "red": [1, 2.5, -3],\n  "name": "x"\n}'
    page.page.get_by_label("Send").select_option("JSON")
    page.page.get_by_role("textbox", name="JSON").fill("[")
    page.page.get_by_role("button", name="Run").click()
    expect(page.page.locator(".error")).to_have_text("This is no JSON object.")
    page.page.get_by_role("textbox", name="JSON").fill('{"a": null}')
    assert run_shell(page.call("curl")) == site.answers["colours"]
    page.page.get_by_label("Send").select_option("A photograph")
    page.page.get_by_label("Photograph").set_input_files(CAT)
    page.run()
    assert site.bodies == [
        ("text/plain", b"Hello, world."),
        ("application/json", b'{"a":null}'),
        ("image/jpeg", CAT.read_bytes()),
    ]


def test_translation_is_shown_as_it_comes(page: Visit, site: Site) -> None:
    first, last = threading.Event(), threading.Event()
    first.set()
    whole = "Où est la gare ?"
    site.pieces = [
        (first, b'{"translation_text": "O\xc3\xb9 est"}\n{"transl'),
        (last, f'ation_text": "{whole}"}}\n'.encode()),
    ]
    page.open(site.url, "translation")
    try:
        page.page.get_by_role("button", name="Run").click()
        expect(page.page.locator(".translation")).to_have_text("Où est")
        expect(page.page.locator(".answer")).to_have_attribute("aria-busy", "true")
    finally:
        last.set()
    expect(page.page.locator(".translation")).to_have_text(whole)
    expect(page.page.locator(".answer")).not_to_have_attribute("aria-busy", "true")


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (413, {"code": 413, "type": "TextTooLong", "message": "600 tokens; at most 512."}, {}),
            "600 tokens; at most 512.\n413 TextTooLong",
        ),
        (
            (429, {"code": 429, "type": "TooMany", "message": "10 requests a second."}, {"Retry-After": "3"}),
            "10 requests a second. Try again in 3 s.\n429 TooMany",
        ),
        ((503, "<h1>no", {}), "No worker is free, or none is up.\n503"),
        ((404, {"error": "no such model"}, {}), "no such model\n404"),
        ((418, "", {}), "The server answered 418.\n418"),
    ],
)
def test_errors_are_shown_in_words(
    browser: Browser, site: Site, answer: tuple[int, Any, dict[str, str]], words: str
) -> None:
    status, body, headers = answer
    site.failure, site.headers = (status, body), headers
    with visit(browser) as page:
        page.open(site.url, "language-id")
        assert page.run() == words


def test_nothing_to_send_is_said_before_anything_is_sent(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    assert page.run() == "Choose a photograph first."
    page.open(site.url, "language-id")
    page.page.get_by_role("textbox", name="Text").fill("   ")
    assert page.run() == "Type a text first."
    assert site.bodies == []


def test_gateway_that_is_gone_is_said_and_found_again(browser: Browser, site: Site) -> None:
    with visit(browser) as page:
        page.open(site.url, "language-id")
        page.page.context.set_offline(True)
        expect(page.page.get_by_role("alert")).to_contain_text("cannot be reached")
        assert page.run() == "The gateway cannot be reached."
        page.page.context.set_offline(False)
        expect(page.page.get_by_role("alert")).to_be_hidden()


# -- the key -----------------------------------------------------------------------------------------------------


def test_key_is_asked_for_kept_in_the_tab_and_forgotten(browser: Browser) -> None:
    with Site(key=KEY) as site, visit(browser) as page:
        page.page.goto(site.url)
        dialog = page.page.get_by_role("dialog")
        expect(dialog).to_contain_text("asks for a key")
        expect(page.page.get_by_role("textbox", name="Key")).to_be_focused()
        page.page.keyboard.type("another-key-of-sixteen")
        page.page.keyboard.press("Enter")
        expect(dialog).to_contain_text("does not know this key")
        page.page.keyboard.type(KEY)
        page.page.keyboard.press("Enter")
        expect(page.page.locator("main h2")).to_be_visible()
        page.open(site.url, "language-id")
        assert page.run().startswith("French")
        stored = page.page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie, location.href]")
        assert stored == [{"gateway-key": KEY}, {}, "", f"{site.url}/#/language-id"]
        # The calls name a variable: what is copied into a ticket has no key.
        assert 'Bearer $KEY"' in page.call("curl") and 'os.environ["KEY"]' in page.call("Python")
        assert KEY not in page.page.content()
        with page.page.expect_download() as download:
            page.page.get_by_role("link", name="OpenAPI").click()
        assert json.loads(download.value.path().read_text())["openapi"] == "3.1.0"
        page.page.get_by_role("button", name="Forget key").click()
        expect(dialog).to_be_visible()
        assert page.page.evaluate("sessionStorage.length") == 0


# -- how it looks and feels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_theme_is_the_systems_until_another_is_chosen(browser: Browser, site: Site, scheme: Any) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    with visit(browser, color_scheme=scheme) as page:
        page.open(site.url)
        shown = "document.documentElement.dataset.theme"
        assert page.page.evaluate(shown) == scheme
        button = page.page.get_by_role("button", name="Dark")
        assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
        button.click()
        assert page.page.evaluate(shown) == other
        page.page.reload()
        page.page.wait_for_selector("main h2")
        assert page.page.evaluate(shown) == other


CONTRASTS = """
() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const [r, g, b] = style.getPropertyValue(name).match(/[0-9a-f]{2}/gi).map((part) => {
      const share = parseInt(part, 16) / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [];
  for (const ink of ["--ink", "--muted"])
    for (const ground of ["--page", "--surface", "--sunken", "--accent-soft", "--bad-soft"]) pairs.push([ink, ground]);
  pairs.push(["--accent-ink", "--accent"], ["--bad", "--bad-soft"], ["--ink", "--mark"], ["--bad", "--surface"]);
  return pairs.map(([ink, ground]) => {
    const [more, less] = [light(ink), light(ground)].sort((a, b) => b - a);
    return [ink, ground, (more + 0.05) / (less + 0.05)];
  });
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(browser: Browser, site: Site, scheme: Any) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    with visit(browser, color_scheme=scheme) as page:
        page.open(site.url)
        assert [pair for pair in page.page.evaluate(CONTRASTS) if pair[2] < 4.5] == []


def test_phone_shows_everything_without_scrolling_sideways(browser: Browser, site: Site) -> None:
    with visit(browser, viewport=PHONE, has_touch=True) as page:
        for model in [*MODELS, "colours"]:
            page.open(site.url, model)
            width = page.page.evaluate("document.documentElement.scrollWidth")
            assert width <= 360, model
            expect(page.page.get_by_role("button", name="Run")).to_be_visible()
        page.open(site.url, "resnet-152")
        page.page.get_by_label("Photograph").set_input_files(CAT)
        assert page.run().startswith("Egyptian cat")
        # What is pressed with a finger is at least 24 pixels high: WCAG 2.2, 2.5.8.
        sizes = page.page.locator("button:visible, nav a, select:visible").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 24


def test_keyboard_alone_is_enough(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    keys = page.page.keyboard
    focused = "(document.activeElement.innerText || document.activeElement.tagName).split('\\n')[0]"
    ringed = "getComputedStyle(document.activeElement).outlineStyle"
    order = []
    for _ in range(6):
        keys.press("Tab")
        order.append(page.page.evaluate(focused))
        assert page.page.evaluate(ringed) == "solid", order
    assert order == ["Skip to the model", "OpenAPI", "Dark", "colours", "language-id", "question-answering"]
    keys.press("Shift+Tab")
    keys.press("Enter")
    expect(page.page.locator("main h2")).to_have_text("language-id")
    while page.page.evaluate("document.activeElement.tagName") != "TEXTAREA":
        keys.press("Tab")
    keys.press("Control+A")
    keys.type("Bonjour")
    keys.press("Tab")
    assert page.page.evaluate(focused) == "Options"
    keys.press("Tab")
    assert page.page.evaluate(focused) == "Run"
    keys.press("Enter")
    expect(page.page.get_by_role("region", name="Answer")).to_contain_text("French")
    assert site.bodies == [("text/plain", b"Bonjour")]
    # The answer, which may scroll, comes next; then what is copied.
    keys.press("Tab")
    assert page.page.evaluate("document.activeElement.getAttribute('aria-live')") == "polite"
    keys.press("Tab")
    assert page.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Copy curl"


def test_skip_link_leads_past_the_list(page: Visit, site: Site) -> None:
    page.open(site.url, "resnet-152")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Version"
    expect(page.page.locator("main h2")).to_have_text("resnet-152")


@pytest.mark.parametrize("model", [*MODELS, "colours"])
def test_every_control_has_a_name(page: Visit, site: Site, model: str) -> None:
    page.open(site.url, model)
    unnamed = page.page.locator(
        "input:visible, select:visible, textarea:visible, button:visible, a:visible"
    ).evaluate_all(
        """all => all.filter((one) => !(one.labels?.length || one.ariaLabel || one.innerText.trim()))
          .map((one) => one.outerHTML)"""
    )
    assert unnamed == []


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 900}, PHONE], ids=["desk", "phone"])
def test_nothing_moves_by_itself(browser: Browser, site: Site, viewport: Any) -> None:
    """Not while it loads, not as numbers and answers come."""
    with visit(browser, viewport=viewport) as page:
        page.open(site.url, "resnet-152")
        page.page.get_by_label("Photograph").set_input_files(CAT)
        is_due = threading.Event()
        site.pieces = [(is_due, json.dumps(MODELS["resnet-152"].answer).encode())]
        page.page.get_by_role("button", name="Run").click()
        # What moves within half a second of a click is not counted: the answer comes later.
        page.page.wait_for_timeout(700)
        is_due.set()
        expect(page.page.locator(".bars li")).to_have_count(5)
        polls = len(site.requests)
        while site.requests[polls:].count("GET /summary") < 2:
            page.page.wait_for_timeout(200)
        assert page.page.evaluate("window.shifts") == []


def test_reduced_motion_moves_nothing(browser: Browser, site: Site) -> None:
    with visit(browser, reduced_motion="reduce") as page:
        page.open(site.url, "language-id")
        page.run()
        assert page.page.locator(".fill").first.evaluate("bar => getComputedStyle(bar).animationName") == "none"
        assert page.page.evaluate("document.getAnimations().length") == 0


# -- what may run ------------------------------------------------------------------------------------------------


def test_policy_lets_nothing_else_run(browser: Browser, site: Site) -> None:
    with visit(browser) as page:
        page.open(site.url)
        tried = page.page.evaluate(
            """async (elsewhere) => {
              const inline = () => {
                const script = document.createElement("script");
                script.append("window.hit = 1");
                document.body.append(script);
              };
              const markup = () => (document.body.innerHTML = "<b>x</b>");
              const outcomes = [];
              for (const attempt of [inline, markup]) {
                try { attempt(); outcomes.push("ran"); } catch { outcomes.push("refused"); }
              }
              try { await fetch(elsewhere); outcomes.push("ran"); } catch { outcomes.push("refused"); }
              return [window.hit ?? null, outcomes[1], outcomes[2], document.querySelectorAll("h2").length > 0];
            }""",
            site.url.replace("127.0.0.1", "127.0.0.2"),
        )
        assert tried == [None, "refused", "refused", True]
        assert {"connect-src", "require-trusted-types-for"} <= set(page.page.evaluate("window.violations"))


# -- calls to copy -----------------------------------------------------------------------------------------------

NASTY = """It's "quoted" $HOME `id` \\n @file
über 🙂 {a}"""


def run_shell(command: str, folder: Path = CAT.parent, **environment: str) -> Any:
    finished = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "no_proxy": "*", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def run_python(program: str, folder: Path = CAT.parent, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("model", ["resnet-152", "translation", "question-answering"])
@pytest.mark.parametrize("has_options", [False, True], ids=["plain", "options"])
def test_calls_that_are_copied_do_what_the_page_does(page: Visit, site: Site, model: str, has_options: bool) -> None:
    page.open(site.url, model)
    if model == "resnet-152":
        page.page.get_by_label("Photograph").set_input_files(CAT)
    else:
        page.page.get_by_label({"translation": "Text", "question-answering": "Context"}[model]).fill(NASTY)
    if has_options:
        page.page.get_by_text("Options", exact=True).click()
        page.page.get_by_label("num_beams" if model == "translation" else "top_k").fill("2")
    page.run()
    assert run_shell(page.call("curl")) == MODELS[model].answer
    assert run_python(page.call("Python")).strip() == str(MODELS[model].answer)
    by_page, by_curl, by_python = site.bodies
    if by_page[0] == "application/json":
        assert json.loads(by_curl[1]) == json.loads(by_page[1]) == json.loads(by_python[1])
    elif by_page[0] != "multipart/form-data":
        assert by_curl[1] == by_page[1] == by_python[1]
    else:
        assert all(CAT.read_bytes() in body and b'name="top_k"\r\n\r\n2\r\n' in body for _, body in site.bodies)


def test_calls_with_a_key_take_it_from_the_environment(browser: Browser) -> None:
    with Site(key=KEY) as site, visit(browser) as page:
        page.page.goto(site.url + "/#/language-id")
        page.page.get_by_role("textbox", name="Key").fill(KEY)
        page.page.get_by_role("button", name="Use key").click()
        page.page.wait_for_selector('h2:text-is("language-id")')
        assert run_shell(page.call("curl"), KEY=KEY) == MODELS["language-id"].answer
        assert run_python(page.call("Python"), KEY=KEY).strip() == str(MODELS["language-id"].answer)


def test_copy_puts_the_call_on_the_clipboard(browser: Browser, site: Site) -> None:
    with visit(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.open(site.url, "language-id")
        page.page.get_by_role("button", name="Copy curl").click()
        expect(page.page.get_by_text("Copied")).to_be_visible()
        assert page.page.evaluate("navigator.clipboard.readText()") == page.call("curl")
