"""SECURITY.md has the reason of each lack of a door, and each lack is a row."""

import re

from deploy.models import ROOT
from handlers.protocol.statuses import STATUSES
from tests.doors.kinds import Asks, Talk, Together
from tests.doors.lacks import LACKS
from tests.doors.rows import CODES, GRPC, HTTP


def test_security_page_has_the_reason_of_each_lack_and_each_lack_is_a_row() -> None:
    page = " ".join((ROOT / "SECURITY.md").read_text(encoding="utf-8").split())
    names = [row.name for row in (*HTTP, *GRPC)]
    assert len({*names}) == len(names)
    for door, lacks in LACKS.items():
        for why, patterns in lacks.items():
            assert why in page, why
            assert [each for each in patterns if not any(re.fullmatch(each, name) for name in names)] == [], door


def test_rows_have_each_status_that_a_client_can_provoke() -> None:
    """The others are of a gateway's keys, rates and nodes, and of queues."""
    talks = [each for row in HTTP for each in (row.talks if isinstance(row, Together) else [row])]
    seen = {int(each) for row in talks if isinstance(row, Talk) for each in re.findall(r"\d{3}", row.sees)}
    assert STATUSES.keys() - seen == {401, 403, 429, 502, 504}
    codes = {each for row in GRPC if isinstance(row, Asks) for each in row.sees.split("|")}
    assert {CODES[each.grpc] for each in STATUSES.values()} - codes == {
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "DEADLINE_EXCEEDED",
    }
