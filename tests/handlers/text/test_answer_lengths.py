import pytest
import transformers

from handlers.text.answer_lengths import AnswerLengths, in_few_classes


@pytest.mark.parametrize(
    ("said", "positions", "wanted", "usual", "limit"),
    [
        ({"max_length": 512}, 512, 512, 511, 512),
        ({"max_length": 512}, 128, 512, 128, 128),
        ({"max_new_tokens": 64, "max_length": 512}, None, 512, 64, 512),
        ({"max_length": None}, None, 512, 256, 512),
        ({"max_length": None}, None, 100, 100, 100),
    ],
)
def test_answer_lengths_are_the_least_of_what_files_positions_and_settings_say(
    said: dict[str, int | None], positions: int | None, wanted: int, usual: int, limit: int
) -> None:
    generation = transformers.GenerationConfig()
    for name, value in said.items():
        setattr(generation, name, value)
    assert AnswerLengths.read(generation, positions, wanted) == AnswerLengths(usual, limit)


@pytest.mark.parametrize(("source", "most"), [(1, 35), (10, 62), (40, 152), (100, 256)])
def test_answer_length_follows_the_sources_up_to_the_usual(source: int, most: int) -> None:
    assert AnswerLengths(256, 512).of(source) == most


@pytest.mark.parametrize(("tokens", "most"), [(1, 1), (2, 2), (35, 64), (64, 64), (65, 128)])
def test_in_few_classes_is_the_next_power_of_two(tokens: int, most: int) -> None:
    assert in_few_classes(tokens) == most
