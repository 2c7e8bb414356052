"""Hugging Face checkpoints: which of their files are packed, which revision, and how one with code is built."""

import json
import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers

from deploy.archives.hub import open_checkpoint
from deploy.archives.sources import WeightsUnavailable, source
from deploy.archives.tasks import load_task
from deploy.models import ModelEntry, model
from handlers.protocol.requests import Payload
from handlers.text.config import TextClassificationConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tiny_models import checkpoint as tiny_checkpoint

MODEL = model("sentence-embedding")


def served(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # A safetensors file without tensors has the length of its header, and the header.
        prefix = b"\2\0\0\0\0\0\0\0" if name.endswith(".safetensors") else b""
        (folder / name).write_bytes(prefix + b"{}")


@pytest.mark.parametrize("with_code", [False, True])
def test_checkpoint_of_a_folder_links_what_is_served_and_code_only_where_it_is_trusted(
    with_code: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json"}
    # A trainer's folder has whole checkpoints below it.
    others = ["README.md", "pytorch_model.bin", "checkpoint-500/config.json", "checkpoint-500/model.safetensors"]
    lay(tmp_path, *wanted, *others, "modeling_own.py", "vocab.py/x.py")
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))
    with open_checkpoint(MODEL, source(MODEL, str(tmp_path)), with_code=with_code) as folder:
        assert served(folder) == wanted | ({"modeling_own.py", "vocab.py/x.py"} if with_code else set())
        # Nothing is copied.
        assert all((folder / name).is_symlink() for name in wanted)
    assert "left out of the archive: checkpoint-500/, pytorch_model.bin\n" in capsys.readouterr().err


def test_kernel_that_a_configuration_names_is_neither_fetched_nor_packed(tmp_path: Path) -> None:
    weights = tiny_checkpoint(tmp_path / "w", "bert", "text_classification", ("NO", "YES"))
    config = json.loads((weights / "config.json").read_text())
    kernel = "kernels-community/flash-attn2"
    chosen = {
        "_attn_implementation": kernel,
        "attn_implementation": kernel,
        "text_config": {"_experts_implementation": 1},
    }
    (weights / "config.json").write_text(json.dumps(config | chosen))
    with open_checkpoint(MODEL, source(MODEL, str(weights))) as folder:
        assert json.loads((folder / "config.json").read_text()) == config | {"text_config": {}}
        network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert network.config._attn_implementation in ("sdpa", "eager")


def test_pickle_of_a_module_is_read_by_our_reader_and_packed_as_safetensors(tmp_path: Path) -> None:
    lay(tmp_path, "config.json", "model.safetensors", "modules.json", "2_Dense/config.json")
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Dense"}]))
    state = torch.nn.Linear(3, 2).state_dict(prefix="linear.")
    torch.save(state, tmp_path / "2_Dense" / "pytorch_model.bin")
    with open_checkpoint(MODEL, source(MODEL, str(tmp_path))) as folder:
        assert {path.name for path in (folder / "2_Dense").iterdir()} == {"config.json", "model.safetensors"}
        found = safetensors.torch.load_file(folder / "2_Dense" / "model.safetensors")
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    (tmp_path / "2_Dense" / "pytorch_model.bin").write_bytes(b"cos\nmkdir\n(tR.")
    refused = pytest.raises(WeightsUnavailable, match=r"2_Dense/pytorch_model\.bin is not a whole file")
    with refused, open_checkpoint(MODEL, source(MODEL, str(tmp_path))):
        pass


@pytest.mark.parametrize("with_weights", [False, True])
def test_checkpoint_of_the_hub_is_of_the_revision_that_the_list_names_and_fetches_what_is_wanted(
    with_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    weights = {"model.safetensors", "model.safetensors.index.json"}

    def snapshot_download(hub_id: str, *, revision: str | None, ignore_patterns: list[str]) -> str:
        asked.append((hub_id, revision))
        there = ["config.json", "tokenizer.json", "model.bin", *weights]
        lay(tmp_path, *(name for name in there if not any(fnmatch(name, pattern) for pattern in ignore_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    identities = set()
    for named in ({"hub": "a/b"}, {"hub": "a/b", "revision": "v1"}, {"hub": "a/b", "revision": "v2"}):
        entry = ModelEntry(MODEL.name, MODEL.handler, MODEL.version, MODEL.folder, weights=named)
        origin = source(entry, None)
        identities.add(origin.identity)
        with open_checkpoint(entry, origin, with_weights=with_weights) as folder:
            wanted = {"config.json", "tokenizer.json"} | (weights if with_weights else set())
            assert served(folder) == served(tmp_path) == wanted
    assert asked == [("a/b", None), ("a/b", "v1"), ("a/b", "v2")]
    assert len(identities) == 3


# Named like modules of Python's and like a package of ours: in the archive's root each would end the worker.
OWN_CODE = {
    "types.py": (
        "from transformers import DistilBertConfig\n\n\nclass OwnConfig(DistilBertConfig):\n    model_type = 'own'\n"
    ),
    "json.py": (
        "from transformers import DistilBertForSequenceClassification\n\nfrom .types import OwnConfig\n\n\n"
        "class OwnModel(DistilBertForSequenceClassification):\n    config_class = OwnConfig\n"
    ),
    "handlers/__init__.py": "raise SystemExit('it is imported')\n",
    "text_classification.py": "raise SystemExit('it is imported')\n",
}


@pytest.mark.builds
def test_trusted_code_of_a_checkpoint_is_served_from_off_the_workers_path_and_refused_where_it_is_not(
    archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = archive_sh.write_list("own", "text_classification", config={"trust_remote_code": True})
    weights = tiny_checkpoint(folder / "weights", "distilbert", "text_classification", labels=("NO", "YES"))
    config = json.loads((weights / "config.json").read_text())
    mapped = {"AutoConfig": "types.OwnConfig", "AutoModelForSequenceClassification": "json.OwnModel"}
    (weights / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": mapped}))
    lay(weights, *OWN_CODE)
    for name, code in OWN_CODE.items():
        (weights / name).write_text(code)
    archive_sh("own", "--weights", str(weights), "--engine", "torch")
    archive = archive_sh.store / "own"
    staged = {name for name in served(archive) if name.endswith(".py")}
    assert {f"checkpoint/{name}" for name in OWN_CODE} == {name for name in staged if name.startswith("checkpoint/")}
    assert {name for name in staged if "/" not in name} == {"text_classification.py"}
    # Into a separate folder; the build has run it already, as a worker will.
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(archive_sh.folder / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = TextClassificationConfig(trust_remote_code=True, engine="torch")
    task = load_task("text_classification", archive, settings)
    (item,) = task.prepare([task.decode(Payload("A text."))])
    ((answer,),) = task.split(task.forward(task.collate([item]), [item]), [item])
    assert answer["label"] in ("NO", "YES")
    assert list((archive_sh.folder / "modules").rglob("json.py"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_task("text_classification", archive, replace(settings, trust_remote_code=False))
