"""A real browser for the page: Debian's Chromium, driven by playwright; and what is copied from it, run.

chromium() -> Browser -> visit(browser, url) -> Visit: a page, and everything that went wrong on it
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from deploy.models import ROOT

CHROMIUM = "/usr/bin/chromium"
# For a machine that stalls: what is waited for comes at once otherwise.
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)
KEY = "a-key-of-sixteen-or-more"
LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@dataclass
class Visit:
    """A page, and what it did."""

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def use_key(self, key: str = KEY) -> None:
        self.page.get_by_role("textbox", name="Key").fill(key)
        self.page.get_by_role("button", name="Use key").click()

    def show(self, model: str) -> None:
        """Show a model; what was typed for it before is kept."""
        self.page.goto(f"{self.url}/#/{model}")
        self.page.wait_for_selector(f'main h2:text-is("{model}")')

    def run(self) -> str:
        """Press Run; return the answer's text once it is there."""
        self.page.get_by_role("button", name="Run").click()
        # Not by a script: the page's policy lets no text become one.
        self.page.locator(".answer:not([aria-busy]):not(:has(> .empty:only-child))").wait_for()
        return self.page.get_by_role("region", name="Response").inner_text()

    def choose(self, file: Path) -> None:
        self.page.get_by_label("Photograph").set_input_files(file)

    def call(self, name: str) -> str:
        return self.page.get_by_label(name, exact=True).text_content() or ""

    def curl(self, folder: Path = ROOT) -> Any:
        return json.loads(_run(["bash", "-c", self.call("curl")], folder))

    def python(self, folder: Path = ROOT) -> str:
        return _run([sys.executable, "-c", self.call("Python")], folder)


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "no_proxy": "*", "PYTHONPATH": str(ROOT / "client"), "KEY": KEY}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """Open a page in a new profile; fail on an error, a request to another host or a violation of the page's policy."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(LISTEN)
    made = Visit(context.new_page(), url)
    made.page.on("request", lambda request: made.asked.append(request.url))
    made.page.on("console", lambda said: made.errors.append(said.text) if said.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda error: made.errors.append(str(error)))
    made.page.goto(url)
    yield made
    # The browser notes each answer that is an error: the first question, without a key, and those that a test wants.
    assert [error for error in made.errors if "Failed to load resource" not in error] == []
    assert [asked for asked in made.asked if not asked.startswith((url, f"blob:{url}"))] == []
    context.close()
