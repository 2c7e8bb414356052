from typing import Any

import numpy as np
import pytest

from deploy.archives.precision.answers import make_proof
from handlers.proofs import Proof, read_proofs
from tests.tables import table


@table(
    *(("top-1", 0.99, 100, True, False), ("top-1", 0.95, 20, False, False), ("labels", 0.9, 20, False, True)),
    *(("top-1", 0.98, 100, False, True), ("vectors", 0.98, 20, False, True)),
)
def test_answers_refute_a_precision(measure: Any, agreement: float, samples: int, holds: bool, is_refuted: Any) -> None:
    found = Proof(measure, agreement, None, samples, 0.99)
    assert (found.holds, found.is_refuted) == (holds, is_refuted)
    assert read_proofs({"bf16": found.to_json()}) == {"bf16": found}


def test_proof_says_that_it_compared_nothing_how_weak_it_is_and_what_is_broken() -> None:
    nothing = Proof("top-1", 0.0, 0.01, 0, 0.99, "20 near ties left out")
    assert str(nothing).startswith("top-1: nothing compared, since no answer in fp32 is clear, largest change 0.0100")
    assert "show 0.85 at most; --validate with 300 or more" in Proof("top-1", 1.0, 0.01, 20, 0.99).weakness
    assert not Proof("top-1", 1.0, 0.01, 300, 0.99).weakness
    rows = [np.array([[0.9, 0.1]])] * 2
    broken = make_proof("image_classification", rows, [rows[0], rows[1] * np.nan], least=0.0)
    assert (broken.holds, broken.is_refuted, broken.broken) == (False, True, 1)
    with pytest.raises(ValueError, match="other fields"):
        read_proofs({"bf16": {"agreement": 1.0}})
