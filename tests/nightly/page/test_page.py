"""The page in a real browser, on a real gateway with a stand-in of TorchServe behind it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, expect

from deploy.models import ROOT
from tests.deploy.gateway.envoy.stand_ins import StandIn
from tests.deploy.hosts.serve.conftest import number_archive
from tests.hosts import run_hosts
from tests.nightly.page.conftest import CAT as LABELS
from tests.nightly.page.conftest import KEY, MODELS, Visit, visit

CAT = ROOT / "examples" / "resnet-152" / "cat.jpg"
NASTY = """It's "quoted" $HOME `id` \\n @file
über 🙂 {a}"""
TEXT = "Ada Lovelace met Charles Babbage in London."  # the page's example
EVIL = '<img src=x onerror="window.hit = 1"><script>window.hit = 1</script>'


def say(node: StandIn, model: str, answer: Any) -> None:
    status, headers, _ = node.answers[f"/predictions/{model}"]
    node.answers[f"/predictions/{model}"] = (status, headers, json.dumps(answer).encode())


def sent(node: StandIn) -> list[Any]:
    return [json.loads(body) for _, body in node.bodies]


def test_models_their_state_and_their_facts_are_those_of_the_fleet(page: Visit, node: StandIn) -> None:
    expect(page.page.locator("#fleet")).to_have_text(f"{len(MODELS)} of {len(MODELS) + 2} models ready on 1 node")
    items = page.page.locator("#models li")
    listed = {item.get_attribute("data-model"): item.locator(".unseen").inner_text() for item in items.all()}
    others = {"text-classification": "1 of 2 workers ready", "idle": "No workers"}
    assert listed == {**dict.fromkeys([*MODELS, "colours"], "Ready"), **others}
    # They come and go without a reload.
    gone = node.models.pop("ragged")
    expect(items).to_have_count(len(MODELS) + 1)
    node.models["ragged"] = gone
    expect(items).to_have_count(len(MODELS) + 2)
    page.show("resnet-152")
    expect(page.page.locator(".what")).to_have_text("Image classification · classic · torchserve_openvino")
    rows = page.page.locator("section[aria-label=Facts] tbody tr").all_inner_texts()
    assert [[cell.strip() for cell in row.split("\t")] for row in rows] == [
        ["1.0 (default)", "node-1", "Ready", "1 of 1", "8", "20 ms"],
        ["2.0, 5 % canary", "node-1", "Ready", "1 of 1", "8", "20 ms"],
        ["image", "BYTES", "[-1, 1]"],
        ["scores", "FP32", "[-1, 1000]"],
        ["top_k", "integer", "5", "the most <b>labels</b>."],
    ]


# A handler of another project counts nothing; TorchServe does.
FRONTEND = {"ts_queue_latency_microseconds": {"": 30_000}, "ts_inference_requests_total": {"": 10}}
WHOLE = FRONTEND | {
    "handler_request_seconds_bucket": {"0.01": 0, "0.1": 90, "+Inf": 100},
    "handler_batch_size_bucket": {"1": 2, "4": 5, "8": 5, "+Inf": 6},
    # TorchServe also counts requests for metadata.
    "handler_requests_total": {"": 8},
    "handler_items_total": {"": 4},
    # A refused request's items are no errors.
    "handler_item_errors_total": {"CorruptInput": 6, "Overloaded": 8},
    "handler_refusals_total": {"": 4},
    **{"handler_queue_depth_sum": {"": 30}, "handler_queue_depth_count": {"": 10}},
    **{"handler_queue_age_seconds_sum": {"": 0.5}, "handler_queue_age_seconds_count": {"": 10}},
}
FIGURES = {
    **{"requests_per_s": 4.0, "p50_ms": 60.0 + 3, "p99_ms": 100.0 + 3, "items_per_s": 9.0, "errors_per_s": 3.0},
    **{"refusals_per_s": 2.0, "wait_ms": 3.0, "queue_items": 3.0, "queue_age_ms": 50.0},
}
DRAW = """async (scrapes) => {
    const { History } = await import("/page/traffic.js");
    const history = new History();
    for (const [nowS, gateway, timeS, counters] of scrapes) history.add(nowS, gateway, timeS, counters);
    return [history.points, history.batchSizes()];
}"""
QUANTILES = """async (found) => {
    const { quantile } = await import("/page/traffic.js");
    return found.map(([share, buckets]) => quantile(share, buckets));
}"""


def test_point_is_the_growth_of_a_gateways_counters(page: Visit) -> None:
    def draw(*scrapes: Any) -> tuple[list[dict[str, Any]], Any]:
        points, sizes = page.page.evaluate(DRAW, scrapes)
        return points, sizes

    points, _ = draw([7, "a", 100, {}], [9, "a", 102, FRONTEND], [10, "a", 102, FRONTEND])
    expected = {"timeS": 9, "requests_per_s": 5.0, "p50_ms": None, "wait_ms": 3.0, "queue_items": None}
    assert [{name: point[name] for name in expected} for point in points] == [expected]
    points, sizes = draw([7, "a", 100, {}], [9, "a", 102, WHOLE])
    assert {name: points[0][name] for name in FIGURES} == pytest.approx(FIGURES)
    assert sizes == [[1, 2], [4, 3], [None, 1]]
    # Another gateway's first counters are no growth; a counter that fell has restarted.
    counted = [{"handler_requests_total": {"": count}} for count in (10, 99, 16, 2)]
    scrapes = (
        [7, "a", 100, counted[0]],
        [8, "b", 5, counted[1]],
        [9, "a", 102, counted[2]],
        [11, "a", 104, counted[3]],
    )
    assert [point["requests_per_s"] for point in draw(*scrapes)[0]] == [3, 1]
    # Quantiles cover ten seconds, points five minutes.
    slow, quick = ({"handler_request_seconds_bucket": {"1": 0, "2": count}} for count in (100, 101))
    points, _ = draw([0, "a", 0, {}], [1, "a", 1, slow], [12, "a", 12, slow], [302, "a", 302, quick])
    assert [(point["timeS"], point["p50_ms"]) for point in points] == [(12, None), (302, 1500)]
    # Ten of a version with the bucket 0.2 and ninety of one without it: 0.2 has fewer than 0.1.
    found = [
        [0.5, [[0.1, 100], [0.2, 10], [0.25, 100], [1, 100]]],
        [0.99, [[0.1, 90], [0.2, 10], [0.25, 100], [1, 100]]],
    ]
    assert page.page.evaluate(QUANTILES, [*found, [0.5, []]]) == [pytest.approx(0.05), pytest.approx(0.245), None]


def test_charts_move_with_the_traffic(page: Visit, node: StandIn) -> None:
    page.show("language-id")
    latency = page.page.get_by_role("img", name="Latency over five minutes")
    assert "p50 –" in (latency.get_attribute("aria-label") or "")
    of, bounds = 'ModelName="language-id"', (("0.01", 0), ("0.1", 80), ("+Inf", 80))
    lines = [f'handler_request_seconds_bucket{{{of},le="{le}"}} {count}' for le, count in bounds]
    sizes = ((1, 2), (4, 6), (8, 8), ("+Inf", 8))
    lines += [f'handler_batch_size_bucket{{{of},le="{size}"}} {count}' for size, count in sizes]
    node.metrics = "\n".join([*lines, f'handler_requests_total{{{of},outcome="success"}} 80', ""])
    expect(latency).to_have_attribute("aria-label", "Latency over five minutes. Now: p50 55 ms, p99 99.1 ms.")
    chart = page.page.get_by_role("img", name="Batch sizes")
    expect(chart).to_have_attribute("aria-label", "Batch sizes of five minutes. 1: 25 %, 4: 50 %, 8: 25 %.")


def test_key_is_asked_for_kept_in_the_tab_and_forgotten(browser: Browser, node: StandIn, url: str) -> None:
    with visit(browser, url) as page:
        dialog = page.page.get_by_role("dialog")
        expect(dialog).to_contain_text("requires an API key")
        page.use_key("another-key-of-sixteen")
        expect(dialog).to_contain_text("does not accept this key")
        page.use_key()
        page.show("language-id")
        assert page.run().startswith("French")
        stored = page.page.evaluate("[{...sessionStorage}, {...localStorage}, document.cookie, location.href]")
        assert stored == [{"gateway-key": KEY}, {}, "", f"{url}/#/language-id"]
        # The calls name a variable: what is copied into a ticket has no key.
        assert KEY not in page.page.content()
        page.page.get_by_role("button", name="Forget key").click()
        expect(dialog).to_be_visible()
        assert page.page.evaluate("sessionStorage.length") == 0


def test_photograph_is_sent_as_it_is_or_with_options_as_a_form(page: Visit, node: StandIn, tmp_path: Path) -> None:
    photograph, path = CAT.read_bytes(), tmp_path / "räv [1].jpg"
    path.write_bytes(photograph)
    page.show("resnet-152")
    assert page.run() == "Choose a photograph first."
    page.choose(path)
    assert page.run().split("\n")[:4] == ["Egyptian cat", "61.2%", "tabby", "20.1%"]
    expect(page.page.locator(".timing")).to_contain_text("decode 1.6 · wait 2.4 · model 11.2 · batch of 8")
    page.assert_calls(LABELS, tmp_path)
    assert (node.bodies[0][0], [body for _, body in node.bodies]) == ("image/jpeg", [photograph] * 3)
    # The canary may have had one of them.
    node.seen.clear()
    node.bodies.clear()
    page.page.get_by_label("Version", exact=True).select_option("2.0")
    page.choose(path)
    page.page.get_by_text("Options", exact=True).click()
    page.fill("top_k", "2")
    page.run()
    page.assert_calls(LABELS, tmp_path)
    assert node.seen["/predictions/resnet-152/2.0"] == 3
    assert [kind for kind, _ in node.bodies] == ["multipart/form-data"] * 3
    assert all(photograph in body and b'name="top_k"\r\n\r\n2\r\n' in body for _, body in node.bodies)


def test_boxes_and_segments_are_drawn_over_the_photograph(page: Visit, node: StandIn) -> None:
    page.show("object-detection")
    page.choose(CAT)
    assert page.run().split("\n") == ["cat", "93%", "sofa", "61%"]
    drawing, image = page.page.locator(".picture svg"), page.page.locator(".picture img")
    with Image.open(CAT) as photograph:
        width, height = photograph.size
    expect(drawing).to_have_attribute("viewBox", f"0 0 {width} {height}")
    assert drawing.bounding_box() == pytest.approx(image.bounding_box(), abs=1)
    first = drawing.locator("rect").first
    assert [first.get_attribute(name) for name in ("x", "y", "width", "height")] == ["40", "20", "380", "260"]
    page.show("image-segmentation")
    page.choose(CAT)
    assert page.run().split("\n") == ["sofa", "80%", "cat", "93%"]
    canvas = page.page.locator(".picture canvas")
    expect(canvas).to_have_attribute("width", "60")
    colours = "canvas => [[5, 9], [55, 30]].map(([x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data])"
    swatches = "[...document.querySelectorAll('.legend i')].map(each => getComputedStyle(each).backgroundColor)"
    drawn, said = canvas.evaluate(colours), page.page.evaluate(swatches)
    assert drawn[0] != drawn[1]
    for pixel, swatch in zip(drawn, said, strict=True):
        assert pixel == pytest.approx([*map(int, re.findall(r"\d+", swatch)), 255], abs=2)
    assert canvas.bounding_box() == pytest.approx(image.bounding_box(), abs=1)


@pytest.mark.parametrize(
    ("model", "answered"),
    [
        ("language-id", ["French (fr)", "98.7%", "Occitan (oc)", "0.4%"]),
        ("text-classification", ["POSITIVE", "100%"]),
        ("sentence-embedding", ["4 numbers", "length 1.000"]),
        ("translation", ["Où est la gare ?"]),
    ],
)
def test_text_is_sent_as_it_is_and_answered_by_its_task(
    page: Visit, node: StandIn, model: str, answered: list[str]
) -> None:
    page.show(model)
    assert [line for line in page.run().split("\n") if line][: len(answered)] == answered
    page.write(NASTY)
    page.run()
    page.assert_calls(MODELS[model][3])
    assert node.bodies == [("text/plain", TEXT.encode()), *[("text/plain", NASTY.encode())] * 3]


def test_two_texts_are_compared_and_documents_are_ranked(page: Visit, node: StandIn) -> None:
    vectors = {"predictions": [[0.5, -0.5, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]}
    say(node, "sentence-embedding", vectors)
    page.show("sentence-embedding")
    # A field of one line has no line break.
    other = NASTY.replace("\n", "")
    page.fill("Compare with", other)
    assert page.run().startswith("Cosine 0.500")
    assert (page.curl(), page.python()) == (vectors, str(vectors["predictions"]))
    assert sent(node) == [{"instances": [TEXT, other]}] * 3
    node.bodies.clear()
    page.show("reranking")
    best, score, second, lower = page.run().split("\n")[:4]
    assert (best, score) == ("The last ferry leaves at seven in the evening.", "93.7%")
    assert (second, lower) == ("Plum cake is sold on Sundays.", "2.1%")
    page.python()
    assert sent(node)[0]["instances"][0] == {"document": "Plum cake is sold on Sundays."}


def test_question_and_entities_are_marked_in_their_text_by_characters(page: Visit, node: StandIn) -> None:
    """Python counts an emoji as one character, JavaScript as two."""
    marks = page.page.locator(".answer mark")
    page.show("question-answering")
    assert page.run().startswith("Ada Lovelace91.2%")
    assert marks.all_inner_texts() == ["Ada Lovelace"]
    page.fill("Context", NASTY)
    page.assert_calls(MODELS["question-answering"][3])
    assert sent(node)[1:] == [{"question": "Who met Babbage?", "context": NASTY}] * 2
    page.show("token-classification")
    page.write("🙂🙂: Ada sings")
    assert page.run() == "🙂🙂: Ada PER sings"
    assert marks.evaluate_all("marks => marks.map((one) => one.firstChild.data)") == ["Ada"]


def test_options_tensors_and_what_the_user_likes_are_json_of_their_types(page: Visit, node: StandIn) -> None:
    page.show("translation")
    page.page.get_by_text("Options", exact=True).click()
    page.fill("num_beams", "4")
    page.fill("tgt_lang", "fra_Latn")
    page.page.get_by_label("early_stopping").select_option("true")
    page.run()
    page.assert_calls(MODELS["translation"][3])
    text = {"text": TEXT, "tgt_lang": "fra_Latn", "num_beams": 4, "early_stopping": True}
    assert ({kind for kind, _ in node.bodies}, sent(node)) == ({"application/json"}, [text] * 3)
    node.bodies.clear()
    page.show("ragged")
    assert json.loads(page.run()) == page.curl() == MODELS["ragged"][3]
    page.python()
    assert sent(node) == [{"ids": [0, 1] * 4, "words": ["text 0", "text 1"], "sizes": [0, 1]}] * 3
    # A row with that many numbers is not shown as text.
    page.show("photographs")
    expect(page.page.get_by_role("textbox", name="JSON")).to_have_value("{}")
    node.bodies.clear()
    # A model without metadata.
    page.show("colours")
    assert page.run() == '{\n  "red": [1, 2.5, -3]\n}'
    page.page.get_by_label("Send").select_option("JSON")
    page.write('{"a": null}', "JSON")
    page.curl()
    assert node.bodies == [("text/plain", TEXT.encode()), ("application/json", b'{"a":null}')]


def test_errors_are_shown_in_words(page: Visit, node: StandIn) -> None:
    node.do = "fail"
    page.show("language-id")
    for status, headers, body, words in (
        (413, {}, b'{"type": "TextTooLong", "message": "600 tokens."}', "600 tokens.413 TextTooLong"),
        (429, {"Retry-After": "3"}, b'{"message": "Ten."}', "Ten. Try again in 3 s.429"),
        (503, {}, b"<h1>no", "No worker is ready, or all workers are busy.503"),
    ):
        node.answers["fail"] = (status, headers, body)
        page.page.get_by_role("button", name="Run").click()
        expect(page.page.locator(".error")).to_have_text(words)


def test_markup_of_models_and_clients_stays_text(page: Visit, node: StandIn) -> None:
    for model, answer in (
        ("language-id", [{"label": EVIL, "score": 0.5}]),
        ("translation", {"translation_text": EVIL}),
        ("text-classification", {"unexpected": {"of": EVIL}}),
    ):
        say(node, model, answer)
        page.show(model)
        page.write(EVIL)
        assert "onerror" in page.run() and "onerror" in page.call("curl")
    node.do, node.answers["fail"] = "fail", (400, {}, json.dumps({"code": 400, "type": EVIL, "message": EVIL}).encode())
    assert EVIL in page.run()
    page.show("resnet-152")
    page.page.get_by_label("Photograph").set_input_files({"name": EVIL, "mimeType": "a/b", "buffer": EVIL.encode()})
    expect(page.page.locator(".drop strong")).to_contain_text("onerror")
    assert page.page.evaluate("window.hit") is None
    assert page.page.locator("main :is(script, b, img[src=x])").count() == 0


def test_one_process_shows_its_models_and_its_api(browser: Browser, tmp_path: Path) -> None:
    archive = number_archive("double", "def infer(x):\n    return {'y': x * 2}\n", tmp_path)
    with run_hosts(archive) as (host,), visit(browser, host.url) as page:
        page.page.wait_for_selector('main h2:text-is("double")')
        expect(page.page.locator("#fleet")).to_have_text("1 model ready on 1 node")
        page.fill("JSON", '{"x": 4}')
        assert json.loads(page.run()) == {"y": 8}
        page.page.get_by_role("link", name="API").click()
        operation = page.page.locator("details", has_text="POST /predictions/double Predict").first
        operation.locator("summary").click()
        url = f"{host.url}/predictions/double"
        told = f"""curl -H 'Content-Type: application/json' --data-raw '{{"x":1}}' '{url}'"""
        expect(operation.locator("pre").first).to_have_text(told)
