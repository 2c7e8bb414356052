"""What the pages promise of the repository: links lead somewhere, commands are run, examples are whole."""

import re

import pytest

from deploy.models import ROOT
from tests.pages import PAGES, RUN_PAGES, anchors, blocks, prose

LINK = re.compile(r"\[[^]]+\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings(page: str) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.resolve().relative_to(ROOT.resolve()).as_posix()):
            wrong.append(f"{link}: no such heading")
    assert not wrong


def test_shell_blocks_stand_on_pages_that_are_run() -> None:
    assert [page for page in PAGES if blocks(page)] == list(RUN_PAGES)


def test_readme_shows_the_custom_task_whole() -> None:
    source = ROOT / "examples" / "custom-task" / "colour_names.py"
    assert source.read_text(encoding="utf-8") in blocks("README.md", "python")
