"""Which row is held against what."""

import pytest

from load.bench.peers import Measured
from load.bench.resnet import Results, table


def results(ours_per_s: float) -> Results:
    """One round in which stock does 10 and the in-process loop 100 images a second."""
    made = Results()
    for clients in (1, 16, 48):
        for name, per_s in (("stock", 10.0), ("ours", ours_per_s), ("in-process", 100.0)):
            made.add("", name, clients, Measured(per_s, 1 / per_s, {}))
    for name in ("stock", "ours"):
        made.memory_mb[name].append(1000.0)
        made.first_answer_s[name].append(9.0)
    return made


@pytest.mark.parametrize(
    ("ours_per_s", "has_amx", "verdicts"),
    [
        # 1 / 92 s is 0.9 ms over 1 / 100 s, 1 / 50 s is 10 ms over.
        (92.0, True, ["ok", "", "ok", "ok", "ok", "", ""]),
        (50.0, True, ["short", "", "short", "short", "short", "", ""]),
        (50.0, False, ["ok", "", "ok", "short", "short", "", ""]),
        (19.0, False, ["short", "", "short", "short", "short", "", ""]),
    ],
)
def test_table_of_results_judges_by_processor(ours_per_s: float, has_amx: bool, verdicts: list[str]) -> None:
    assert [row.cells()[-1] for row in table(results(ours_per_s), has_amx)] == verdicts


def test_results_of_failed_requests_leave_a_remark() -> None:
    made = Results()
    made.add("round 1/3, 48 clients, ours", "ours", 48, Measured(10.0, 0.1, {503: 2}))
    assert made.remarks == ["round 1/3, 48 clients, ours: FAILED requests, by status: {503: 2}"]
