"""Each optional part can be removed: its folder, its registrations and its tests leave, and the rest works."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import pytest

from deploy.models import ROOT
from tests.pages import PAGES, prose, read
from tests.rooms import ROOMS, find_leftovers, leave_out, removed_files, with_above

ALL = "core"
LINK = re.compile(r"\[[^]]+\]\(([^)\s#]+)[^)\s]*\)")


def rooms_of(name: str) -> list[str]:
    return list(ROOMS) if name == ALL else with_above(name)


@pytest.mark.parametrize("name", [*ROOMS, ALL])
def test_rest_names_no_module_or_file_of_a_room(name: str) -> None:
    removed = {*removed_files(rooms_of(name))}
    linked = [
        f"{page} links {link}"
        for page in PAGES
        if page not in removed
        for link in LINK.findall(prose(page))
        if (path := os.path.relpath((ROOT / page).parent / link, ROOT)) in removed and not path.endswith(".md")
    ]
    assert find_leftovers(rooms_of(name)) == []
    assert linked == []


def test_way_of_a_request_is_short_and_in_no_room() -> None:
    """Nothing outside a room imports one, as the test above shows; so these do not."""
    core = re.findall(r"^\d+\. `([\w/]+\.py)`", read("docs/explanation/architecture.md"), re.MULTILINE)
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in core)
    assert (0 < len(core) <= 15, lines <= 3500) == (True, True)
    assert [name for name in core if name in removed_files(ROOMS)] == []


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    folder = tmp_path_factory.mktemp("rooms")
    copies = {name: folder / name for name in (*ROOMS, ALL)}
    for name, copy in copies.items():
        leave_out(rooms_of(name), copy)
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "room_check.py"), *map(str, copies.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Mapping[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.builds
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [*ROOMS, ALL])
def test_rest_is_imported_and_prints_help_without_a_room(name: str, problems: Mapping[str, list[str]]) -> None:
    """The core runs its tests, too."""
    assert problems[name] == []
