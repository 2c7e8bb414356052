import json
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
import torch

from deploy.hub import checkpoint
from deploy.models import Model, model
from deploy.sources import source

MODEL = model("sentence-embedding")
SERVED = {"config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"}
LEFT_OUT = {"README.md", "pytorch_model.bin", "optimizer.pt"}


def test_checkpoint_of_a_folder_links_what_is_served_and_copies_nothing(tmp_path: Path) -> None:
    for name in SERVED | LEFT_OUT:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    with checkpoint(MODEL, source(MODEL, str(tmp_path))) as folder:
        files = [path for path in folder.rglob("*") if not path.is_dir()]
        assert {path.relative_to(folder).as_posix() for path in files} == SERVED
        assert all(path.is_symlink() and path.read_text() == path.relative_to(folder).as_posix() for path in files)


def served(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


CODE = {"modeling_own.py", "deep/tools.py"}


@pytest.mark.parametrize("with_code", [False, True])
def test_checkpoint_brings_its_code_only_where_that_is_trusted(with_code: bool, tmp_path: Path) -> None:
    lay(tmp_path, "config.json", "model.safetensors", "tokenizer_config.json", "vocab.py/x.py", *CODE)
    with checkpoint(MODEL, source(MODEL, str(tmp_path)), with_code=with_code) as folder:
        code = {*CODE, "vocab.py/x.py"} if with_code else set()
        assert served(folder) == {"config.json", "model.safetensors", "tokenizer_config.json"} | code


def test_checkpoint_of_one_file_takes_what_is_beside_it_and_nothing_from_below(tmp_path: Path) -> None:
    beside = {"config.json", "tokenizer.json", "1_Pooling/config.json", "modules.json"}
    lay(tmp_path, *beside, "own.py", "other/config.json", "other/deep/tokenizer.json", "other/model.safetensors")
    paths = ["", "1_Pooling", "../elsewhere", ".."]
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "T", "path": path} for path in paths]))
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.bin")
    with checkpoint(MODEL, source(MODEL, str(tmp_path / "model.bin"))) as folder:
        assert served(folder) == beside | {"model.safetensors"}


def test_checkpoint_of_the_hub_is_of_the_revision_that_the_list_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path, "config.json", "model.safetensors")
    asked = []

    def snapshot_download(hub_id: str, **options: object) -> str:
        asked.append((hub_id, options["revision"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    identities = set()
    for weights in ({"hub": "a/b"}, {"hub": "a/b", "revision": "v1"}, {"hub": "a/b", "revision": "v2"}):
        entry = Model(MODEL.name, MODEL.handler, MODEL.version, MODEL.folder, weights=weights)
        origin = source(entry, None)
        identities.add(origin.identity)
        with checkpoint(entry, origin):
            pass
    assert asked == [("a/b", None), ("a/b", "v1"), ("a/b", "v2")]
    assert len(identities) == 3


@pytest.mark.parametrize("with_weights", [False, True])
def test_checkpoint_of_the_hub_fetches_weights_only_where_they_are_wanted(
    with_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(_: str, *, revision: str | None, ignore_patterns: list[str]) -> str:
        assert revision is None
        there = ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", "model.bin")
        lay(tmp_path, *(name for name in there if not any(fnmatch(name, pattern) for pattern in ignore_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    weights = {"model.safetensors", "model.safetensors.index.json"}
    with checkpoint(MODEL, source(MODEL, "a/b"), with_weights=with_weights) as folder:
        assert (
            served(tmp_path)
            == served(folder)
            == {"config.json", "tokenizer.json"} | (weights if with_weights else set())
        )


def test_source_of_one_file_is_another_where_its_configuration_is(tmp_path: Path) -> None:
    lay(tmp_path, "config.json", "README.md", "other/config.json")
    (tmp_path / "model.bin").write_bytes(b"weights")
    before = source(MODEL, str(tmp_path / "model.bin")).identity
    for name in ("README.md", "other/config.json"):
        (tmp_path / name).write_text('{"edited": true}')
        assert source(MODEL, str(tmp_path / "model.bin")).identity == before
    (tmp_path / "config.json").write_text('{"edited": true}')
    assert source(MODEL, str(tmp_path / "model.bin")).identity != before
