import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchserve_client.inputs import Input, Keys, Shard, source


def listed(path: Path, own: frozenset[str] = frozenset()) -> list[Input]:
    """What is asked about, gone through twice."""
    with source(path, own) as inputs:
        once = list(inputs)
        assert list(inputs) == once
    return once


def folder(root: Path) -> Path:
    for name in ("b.jpg", "a.jpg", "below/c.jpg", "below-that/d.jpg", ".hidden", ".git/e.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "link").symlink_to(root)
    (root / "link.jpg").symlink_to(root / "a.jpg")
    return root


def test_folder_lists_its_files_by_path_without_hidden_ones_and_linked_folders(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    names = ["a.jpg", "b.jpg", "below-that/d.jpg", "below/c.jpg", "link.jpg"]
    assert listed(root) == [Input(name, root / name) for name in names]
    assert [each.name for each in listed(root, frozenset({"a.jpg", "below/c.jpg"}))] == [
        "b.jpg",
        "below-that/d.jpg",
        "link.jpg",
    ]


def test_file_whose_name_is_not_utf8_is_listed_under_one_that_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).write_bytes(b"x")
    assert [(each.name, each.content()) for each in listed(tmp_path)] == [(r"caf\xe9.jpg", b"x")]


def test_lines_are_numbered_as_in_the_file_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff첫째\n\nsecond\u2028still second\r\n   \nthird".encode())
    assert listed(path) == [Input("1", "첫째"), Input("3", "second\u2028still second"), Input("5", "third")]


def test_key_is_that_of_content_model_and_options() -> None:
    keys = [
        Keys(model, options).of(content)
        for model in ("m", "n")
        for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": 1, "x": "y"})
        for content in (b"a", b"b", b"")
    ]
    assert len(set(keys)) == len(keys) == 24
    assert Keys("m", {"b": 1, "a": 2}).of(b"a") == Keys("m", {"a": 2, "b": 1}).of(b"a")


# -- shards ------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


def members(names: list[str], count: int) -> list[list[str]]:
    """What each shard has of the inputs."""
    return [[name for name in names if Shard(index, count).has(name)] for index in range(count)]


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
        ("\u0663/16", "is not INDEX/COUNT"),
        ("16/16", "of 16 shards there is no 16: 0 to 15"),
        ("0/100001", "of 100001 shards there are none"),
    ],
)
def test_shard_that_is_none_says_so(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as raised:
        Shard.parse(text)
    assert words in str(raised.value)
