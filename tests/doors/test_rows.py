"""SECURITY.md has the reason of each lack of a door, and each lack is a row."""

import re

from deploy.models import ROOT
from tests.doors.lacks import LACKS
from tests.doors.rows import GRPC, HTTP


def test_security_page_has_the_reason_of_each_lack_and_each_lack_is_a_row() -> None:
    page = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    names = [row.name for row in (*HTTP, *GRPC)]
    assert len({*names}) == len(names)
    for door, lacks in LACKS.items():
        for why, patterns in lacks.items():
            assert why in page, why
            assert [each for each in patterns if not any(re.fullmatch(each, name) for name in names)] == [], door
