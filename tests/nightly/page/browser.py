"""A real browser for the page: Debian's Chromium, driven by playwright. What it asks of others, and says of errors.

chromium() -> Browser -> visit(browser, site) -> Visit: a page, and everything that went wrong on it
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
# For a machine that stalls: what is waited for comes at once otherwise.
TIMEOUT_MS = 30_000

# Every move of what was drawn already, but for those within half a second of a click or key, as the metric CLS has it.
COUNT_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) {
    const moved = shift.sources.map((source) => String(source.node?.className));
    if (!shift.hadRecentInput) window.shifts.push([shift.value, moved]);
  }
}).observe({type: "layout-shift", buffered: true});
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@dataclass
class Visit:
    """A page, and what it did.

    Attributes:
        page: playwright's.
        asked: URLs of all requests.
        errors: what the console had of warnings and errors, and exceptions that nobody caught.
    """

    page: Page
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, url: str, model: str | None = None) -> None:
        """Load the page, and wait until a model is shown."""
        self.page.goto(url + (f"/#/{model}" if model else "/"))
        self.page.wait_for_selector(f'main h2:text-is("{model}")' if model else "main h2")

    def run(self) -> str:
        """Press Run; the answer's text once it is there."""
        self.page.get_by_role("button", name="Run").click()
        # Not by a script: the page's policy lets no text become one.
        self.page.locator(".answer:not([aria-busy]):not(:has(> .empty:only-child))").wait_for()
        return self.answer()

    def answer(self) -> str:
        return self.page.get_by_role("region", name="Answer").inner_text()

    def call(self, name: str) -> str:
        """What stands under curl or Python."""
        return self.page.get_by_label(name, exact=True).text_content() or ""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, **options: Any) -> Iterator[Visit]:
    """A browser's profile of its own, which knows nothing of others."""
    context = browser.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(COUNT_SHIFTS)
    made = Visit(context.new_page())
    made.page.on("request", lambda request: made.asked.append(request.url))
    made.page.on("console", lambda said: made.errors.append(said.text) if said.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda error: made.errors.append(str(error)))
    yield made
    context.close()
