from types import SimpleNamespace
from typing import Any, cast

from load.bench.impatient import cells


def summary(goodput_per_s: float, refused: int) -> Any:
    return cast(Any, SimpleNamespace(goodput_per_s=goodput_per_s, statuses={200: 1, 503: refused}))


def test_goodput_is_held_against_that_of_the_same_round() -> None:
    patient, impatient = [summary(60, 0), summary(20, 4)], [summary(54, 400), summary(19, 800)]
    goodput, refused = cells(patient, impatient, 4)
    assert goodput == ("goodput, /s", "40.0 (20.0..60.0)", "36.5 (19.0..54.0)", "0.93 (0.90..0.95)", ">= 0.9", "ok")
    assert refused[2] == "150.0 (100.0..200.0)"
    (short, _) = cells(patient, [summary(54, 0), summary(10, 0)], 4)
    assert short[-1] == "short"
