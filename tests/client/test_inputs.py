import os
from pathlib import Path

import pytest

from torchserve_client import InvalidPayload
from torchserve_client.inputs import Input, Keys, read_inputs


def folder(root: Path) -> Path:
    for name in ("b.jpg", "a.jpg", "below/c.jpg", "below-that/d.jpg", ".hidden", ".git/e.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "link").symlink_to(root)
    (root / "link.jpg").symlink_to(root / "a.jpg")
    return root


def test_folder_lists_its_files_by_path_without_hidden_ones_and_linked_folders(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    names = ["a.jpg", "b.jpg", "link.jpg", "below/c.jpg", "below-that/d.jpg"]
    assert list(read_inputs(root)) == [Input(name, root / name) for name in names]
    found = read_inputs(root, {root / "a.jpg", root / "below" / "c.jpg"})
    assert [each.name for each in found] == ["b.jpg", "link.jpg", "below-that/d.jpg"]


def test_file_whose_name_is_not_utf8_is_listed_under_one_that_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).write_bytes(b"x")
    assert [(each.name, each.content()) for each in read_inputs(tmp_path)] == [(r"caf\xe9.jpg", b"x")]


def test_lines_are_numbered_as_in_the_file_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff첫째\n\nsecond\u2028still second\r\n   \nthird".encode())
    assert list(read_inputs(path)) == [Input("1", "첫째"), Input("3", "second\u2028still second"), Input("5", "third")]


def test_pipe_which_could_not_be_read_again_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidPayload, match="neither a folder nor a file of UTF-8 lines"):
        list(read_inputs(tmp_path / "pipe"))


def test_key_is_that_of_content_model_and_options() -> None:
    keys = [
        Keys(model, options).make(content)
        for model in ("m", "n")
        for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": 1, "x": "y"})
        for content in (b"a", b"b", b"")
    ]
    assert len(set(keys)) == len(keys) == 24
    assert Keys("m", {"b": 1, "a": 2}).make(b"a") == Keys("m", {"a": 2, "b": 1}).make(b"a")
