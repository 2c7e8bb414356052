"""The documentation as a site, `make docs`: each link of each page leads to a file and a heading."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from deploy.models import ROOT

SITE = ROOT / "build" / "site"


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.names = set[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.links |= {found[name] for name in ("href", "src") if name in found}
        self.names |= {found[name] for name in ("id", "name") if name in found}


@pytest.mark.builds
def test_every_link_of_the_site_leads_somewhere() -> None:
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            url, part = urldefrag(link)
            if re.match("[a-z]+:|//", url):
                continue
            target = SITE / url[1:] if url.startswith("/") else (path.parent / unquote(url)).resolve() if url else path
            target = target / "index.html" if target.is_dir() else target
            names = pages[target].names if target in pages else ()
            if not target.exists() or (part and names and unquote(part) not in names):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert (dead, len(pages) > 40) == ([], True)
