"""Take the pictures of the gateway's page, or of a load report: python -m docs.screenshots [--report PAGE.html]

running gateway -> Debian's Chromium -> send a photograph, wait -> docs/images/gateway-page[-dark].png
report of load  -> its first screens -> docs/images/load-report.png
Start a gateway (README.md), send some load to the model, and run this program.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from deploy.models import ROOT

IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
# Pixels of the page, and the scale of the picture for screens of high density.
WIDTH, HEIGHT, SCALE = 1160, 760, 1.5
REPORT_HEIGHT = 1150  # without its tables
# The most colours of a picture: flat surfaces and one photograph need no more.
COLOURS = 128
Theme = Literal["light", "dark"]
THEMES: dict[Theme, str] = {"light": "", "dark": "-dark"}


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start Debian's Chromium; without it, end the program with one line."""
    if not Path(CHROMIUM).exists():
        sys.exit(f"{CHROMIUM} is missing; `make packages` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def write_picture(page: Page, path: Path, *, full: bool = False) -> None:
    """Write what a page shows as a PNG with a palette."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=full))).convert("RGB")
    shot.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    sys.stdout.write(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB\n")


def open_page(browser: Browser, url: str, theme: Theme) -> Page:
    """Open a page in a colour scheme."""
    size: ViewportSize = {"width": WIDTH, "height": HEIGHT}
    page = browser.new_context(viewport=size, device_scale_factor=SCALE, color_scheme=theme).new_page()
    page.goto(url)
    return page


def take_gateway(browser: Browser, url: str, model: str, photograph: Path) -> None:
    """Take the page of a model after a request."""
    for theme, suffix in THEMES.items():
        page = open_page(browser, f"{url}/#/{model}", theme)
        page.wait_for_selector(f'main h2:text-is("{model}")')
        if (field := page.get_by_label("Photograph")).count():
            field.set_input_files(photograph)
        page.get_by_role("button", name="Run").click()
        page.locator(".answer:not([aria-busy]):not(:has(> .empty:only-child))").wait_for()
        write_picture(page, IMAGES / f"gateway-page{suffix}.png", full=True)


def main() -> None:
    """Take the pictures that the arguments name."""
    parser = argparse.ArgumentParser(description="Take the pictures of the documentation.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="gateway that runs; default: %(default)s")
    parser.add_argument("--model", default="mobilenet-v2", help="model of the gateway; default: %(default)s")
    photograph = ROOT / "examples" / "mobilenet-v2" / "espresso.jpg"
    parser.add_argument("--photograph", type=Path, default=photograph, metavar="FILE", help="image to send")
    parser.add_argument("--report", type=Path, metavar="PAGE.html", help="page that `python -m load` wrote with --html")
    arguments = parser.parse_args()
    with start_browser() as browser:
        if arguments.report:
            page = open_page(browser, arguments.report.resolve().as_uri(), "light")
            page.set_viewport_size({"width": WIDTH, "height": REPORT_HEIGHT})
            write_picture(page, IMAGES / "load-report.png")
        else:
            take_gateway(browser, arguments.url, arguments.model, arguments.photograph)


if __name__ == "__main__":
    main()
