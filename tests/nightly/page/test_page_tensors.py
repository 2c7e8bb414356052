"""Models of tensors on the page: an example is made of what they say, and files of arrays are sent as they are."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from deploy.gateway.state import Version
from tests.deploy.gateway.canned import TENSOR_MODELS, Site, tensor_fleet
from tests.nightly.page.browser import TIMEOUT_MS, Visit, chromium, visit
from tests.nightly.page.test_page import run_python, run_shell

expect.set_options(timeout=TIMEOUT_MS)

EXAMPLES: dict[str, Any] = {
    "mnist": {"image": [[[(28 * row + column) % 10 / 10 for column in range(28)] for row in range(28)]]},
    "ragged": {"ids": [0, 1] * 4, "is_long": True, "words": ["text 0", "text 1"], "sizes": [0, 1]},
    # By itself, this would be columns.
    "anything": {"instances": [{"inputs": [index / 10 for index in range(8)]}]},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(tensor_fleet()) as running:
        running.answers = {name: answer for name, (_, _, answer) in TENSOR_MODELS.items()}
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Visit]:
    with visit(browser) as made:
        yield made
        assert made.errors == []


@pytest.mark.parametrize("model", EXAMPLES)
def test_example_of_a_row_is_sent_by_page_shell_and_python_alike(page: Visit, site: Site, model: str) -> None:
    page.open(site.url, model)
    expect(page.page.locator(".what")).to_have_text("Tensors · classic · torchserve_function")
    assert json.loads(page.run()) == site.answers[model]
    assert run_shell(page.call("curl")) == site.answers[model]
    run_python(page.call("Python"))
    assert [(kind, json.loads(body)) for kind, body in site.bodies] == [("application/json", EXAMPLES[model])] * 3


def test_lists_of_numbers_are_one_line_each(page: Visit, site: Site) -> None:
    page.open(site.url, "mnist")
    text = page.page.get_by_role("textbox", name="JSON").input_value()
    assert len(text.splitlines()) == 28 + 6
    assert page.run().splitlines()[1] == '  "logits": [-4.25, -3.5, 0.125, 2, -6.5, -1.25, -9, 11.75, -2.5, 1.5]'


@pytest.mark.parametrize(
    ("name", "media_type"), [("räv [1].npy", "application/x-npy"), ("rows.npz", "application/x-npz")]
)
def test_file_of_arrays_is_sent_as_it_is(page: Visit, site: Site, tmp_path: Path, name: str, media_type: str) -> None:
    pixels, file = np.zeros((2, 3, 224, 224), np.float32), io.BytesIO()
    np.save(file, pixels) if name.endswith("npy") else np.savez(file, pixels=pixels)
    (tmp_path / name).write_bytes(file.getvalue())
    # A row of so many numbers is no text: a file is what is asked for first.
    page.open(site.url, "photographs")
    expect(page.page.get_by_label("Send")).to_have_value("0")
    assert page.run() == "Choose a file first."
    page.page.get_by_label("File of arrays").set_input_files(tmp_path / name)
    expect(page.page.locator(".drop strong")).to_have_text(name)
    assert json.loads(page.run()) == {"outputs": {"y": [0.5, 0.25]}}
    assert run_shell(page.call("curl"), tmp_path) == {"outputs": {"y": [0.5, 0.25]}}
    run_python(page.call("Python"), tmp_path)
    assert site.bodies == [(media_type, file.getvalue())] * 3
    page.page.get_by_label("Send").select_option("JSON")
    expect(page.page.get_by_role("textbox", name="JSON")).to_have_value("{}")
    assert page.call("curl").endswith("/predictions/photographs")
    assert "--data-raw '{}'" in page.call("curl")


def test_facts_say_which_dimension_counts_rows_and_what_is_not_known_yet(page: Visit, site: Site) -> None:
    page.open(site.url, "ragged")
    rows = page.page.locator("section[aria-label=Facts] tbody tr")
    assert [cell.strip() for cell in rows.nth(4).inner_text().split("\t")] == [
        "sizes",
        "UINT8",
        "[2, -1], rows along dimension 1",
    ]
    page.open(site.url, "anything")
    expect(rows.last).to_have_text("Known once the model has run")


def test_what_was_typed_stays_when_a_function_has_said_its_outputs(page: Visit, site: Site) -> None:
    page.open(site.url, "anything")
    page.page.get_by_role("textbox", name="JSON").fill('{"instances": [1]}')
    page.run()
    model = site.served.models["anything"]
    known = model.versions["1"]
    said = {**(known.metadata or {}), "outputs": [{"name": "y", "datatype": "ANY", "shape": [-1]}]}
    changed = replace(model, versions={"1": Version("1", known.replicas, said)})
    site.served = replace(site.served, models={**site.served.models, "anything": changed})
    expect(page.page.locator("section[aria-label=Facts] tbody tr").last).to_contain_text("y")
    expect(page.page.get_by_role("textbox", name="JSON")).to_have_value('{"instances": [1]}')
    assert json.loads(page.answer()) == {"y": [0, 0.1]}
