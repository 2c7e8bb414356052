"""The project's pages and their parts."""

import re
from textwrap import dedent

from deploy.models import ROOT

# Pages whose shell blocks run in this order in one shell: tests/e2e/test_readme.py.
RUN_PAGES = (
    "README.md",
    "docs/tutorials/first-model.md",
    "docs/tutorials/write-a-task.md",
    "docs/how-to/keys-and-tls.md",
    "docs/how-to/embeddings-in-production.md",
    "docs/how-to/gateway.md",
    "docs/how-to/latency-target.md",
    "docs/how-to/roll-out.md",
    "docs/reference/metrics.md",
    "docs/how-to/production.md",
)
PAGES = (
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "load/README.md",
    "client/README.md",
)

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "bash") -> list[str]:
    return [dedent(body) for name, body in FENCE.findall(read(page)) if name == language]


def prose(page: str) -> str:
    return FENCE.sub("", read(page))


def codes(page: str) -> list[str]:
    return [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose(page))]


def anchors(page: str) -> set[str]:
    """Return its headings' anchors as GitHub makes them: lower case, no punctuation, hyphens for blanks."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def section(page: str, heading: str) -> str:
    _, _, rest = read(page).partition(f"\n{heading}\n")
    assert rest, f"{page}: no heading {heading!r}"
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str) -> list[list[str]]:
    """The cells of a text's first table, without its head."""
    rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]
