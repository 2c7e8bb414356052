"""Which of several ways to run a model serves best, by figures alone."""

import pytest

from handlers.adaptive.choice import Candidate, Figures, chosen, told

BF16, INT8, STREAMS = Candidate("bf16", 1), Candidate("int8", 1), Candidate("int8", 2)


@pytest.mark.parametrize(
    ("figures", "taken"),
    [
        # ResNet-152 on a processor with AMX: int8 is slower for one, and faster by more for many.
        ({BF16: (0.0182, 0.0130), INT8: (0.0217, 0.0073)}, INT8),
        ({BF16: (0.020, 0.010), INT8: (0.045, 0.005)}, BF16),
        ({BF16: (0.004, 0.002), INT8: (0.002, 0.004)}, BF16),
        # Less than what a shared machine's times are certain to is no reason to leave the likeliest.
        ({BF16: (0.100, 0.100), INT8: (0.098, 0.098)}, BF16),
        ({BF16: (0.100, 0.100), INT8: (0.097, 0.097)}, INT8),
        ({BF16: (0.02, 0.02), INT8: (0.02, 0.012), STREAMS: (0.02, 0.009)}, STREAMS),
        ({INT8: (0.5, 0.5)}, INT8),
    ],
)
def test_chosen_has_the_least_product_of_an_items_times_and_is_the_likeliest_unless_it_is_clear(
    figures: dict[Candidate, tuple[float, float]], taken: Candidate
) -> None:
    assert chosen({each: Figures(*times) for each, times in figures.items()}) == taken


def test_log_says_what_each_took_what_is_taken_and_what_was_left_out() -> None:
    figures = {BF16: Figures(0.0251, 0.0220), INT8: Figures(0.026, 0.0129)}
    assert told(figures, INT8, 8, [STREAMS], is_remembered=False) == (
        "Runs int8 whole: ms an item alone and among 8: bf16 whole 25.10 and 22.00, int8 whole 26.00 and 12.90; "
        "the least product of both; no time for int8 in 2 streams"
    )
    assert told({BF16: Figures(0.001, 0.001)}, BF16, 1, (), is_remembered=True) == (
        "Runs bf16 whole: ms an item alone and among 1 as an earlier start measured it: bf16 whole 1.00 and 1.00; "
        "the others are not clearly faster"
    )
