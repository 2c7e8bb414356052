from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_client.inputs import Input
from torchserve_client.shards import MOST, Shard, Sharded

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def members(names: list[str], count: int) -> list[list[str]]:
    """What each shard has of the inputs, read as `predict` does."""
    inputs = [Input(name, name) for name in names]
    return [[each.name for each in Sharded(inputs, Shard(index, count))] for index in range(count)]


@given(st.lists(NAMES, unique=True, max_size=60), st.integers(1, 40), st.randoms())
def test_shards_are_disjoint_complete_and_the_same_in_any_order_and_company(
    names: list[str], count: int, random: object
) -> None:
    shards = members(names, count)
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    half = shuffled[: len(shuffled) // 2]
    # The others being there or not moves none of them.
    assert [set(shard) for shard in members(half, count)] == [set(shard) & set(half) for shard in shards]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3", "'3' is not INDEX/COUNT, as in 3/16"),
        ("3/", "is not INDEX/COUNT"),
        ("a/b", "is not INDEX/COUNT"),
        ("3/16/2", "is not INDEX/COUNT"),
        ("-1/16", "is not INDEX/COUNT"),
        (" 3/16", "is not INDEX/COUNT"),
        ("3/16\n", "is not INDEX/COUNT"),
        ("\u0663/16", "is not INDEX/COUNT"),
        ("1.5/16", "is not INDEX/COUNT"),
        ("$(JOB_COMPLETION_INDEX)/16", "is not INDEX/COUNT"),
        ("16/16", "of 16 shards there is no 16: 0 to 15"),
        ("0/0", "of 0 shards there are none: 1 to 100000"),
        ("0/100001", "of 100001 shards there are none"),
    ],
)
def test_shard_that_is_none_says_so(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as raised:
        Shard.parse(text)
    assert words in str(raised.value)


def test_files_of_shards_are_each_their_own_and_sort_by_number() -> None:
    folder = Path("answers")
    assert Shard.parse("3/16").file(folder) == folder / "shard-03-of-16.jsonl"
    names = [Shard(index, 1000).file(folder).name for index in range(1000)]
    assert names == sorted(set(names))
    assert Shard.parse(f"{MOST - 1}/{MOST}").file(folder).name == "shard-099999-of-100000.jsonl"
    assert len(set(Shard(0, 3).files(folder))) == 6
