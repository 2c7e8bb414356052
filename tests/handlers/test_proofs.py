import pytest

from handlers.proofs import Measure, Proof, read_proofs


@pytest.mark.parametrize(
    ("measure", "agreement", "samples", "holds", "is_refuted"),
    [
        ("top-1", 0.99, 100, True, False),
        ("top-1", 0.95, 20, False, False),
        ("labels", 0.9, 20, False, True),
        ("top-1", 0.98, 100, False, True),
        ("vectors", 0.98, 20, False, True),
    ],
)
def test_precision_is_refuted_by_answers_that_differ_and_not_by_one_of_few(
    measure: Measure, agreement: float, samples: int, holds: bool, is_refuted: bool
) -> None:
    proof = Proof(measure, agreement, None, samples, 0.99)
    assert (proof.holds, proof.is_refuted) == (holds, is_refuted)
    assert read_proofs({"bf16": proof.to_json()}) == {"bf16": proof}


def test_proof_with_other_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="other fields"):
        read_proofs({"bf16": {"agreement": 1.0}})
