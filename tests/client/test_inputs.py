import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from torchserve_client import InvalidPayload
from torchserve_client.inputs import Input, Keys, source


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


def test_lines_of_a_pipe_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=[b"a\nb\n"])
    writer.start()
    assert listed(path) == [Input("1", "a"), Input("2", "b")]
    writer.join()


@pytest.mark.parametrize(
    ("name", "words"), [("photo.jpg", "neither a folder nor a file of UTF-8 lines"), ("none", "No such file")]
)
def test_source_that_is_none_says_so(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InvalidPayload, match=words):
        listed(tmp_path / name)


def test_lines_are_never_all_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    line = "a" * 1023 + "\n"
    with path.open("w") as file:
        file.writelines(line for _ in range(32 * 1024))
    with source(path) as inputs:
        tracemalloc.start()
        try:
            assert sum(1 for _ in inputs) == 32 * 1024
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # Of 32 MiB.
    assert most < 2**20


def test_key_is_that_of_content_model_and_options() -> None:
    keys = [
        Keys(model, options).of(content)
        for model in ("m", "n")
        for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": 1, "x": "y"})
        for content in (b"a", b"b", b"")
    ]
    assert len(set(keys)) == len(keys) == 24
    assert Keys("m", {"b": 1, "a": 2}).of(b"a") == Keys("m", {"a": 2, "b": 1}).of(b"a")
