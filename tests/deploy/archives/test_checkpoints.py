"""Hugging Face checkpoints and tasks in files of users: what is packed, fetched, trusted and rejected."""

import json
import sys
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers
import yaml

from deploy.archives.hub import open_checkpoint
from deploy.archives.sources import WeightsUnavailable, source
from deploy.archives.tasks import BUILT_IN, load_task
from deploy.models import ModelEntry, model
from handlers.archive_files import Build, check
from handlers.errors import InvalidConfig
from handlers.pipeline.task import decode
from handlers.protocol.requests import Payload
from handlers.text.config import TextClassificationConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table
from tests.tensor_files import files
from tests.tiny_models import change_json, checkpoint

MODEL = model("sentence-embedding")
# Named like modules of Python's and like a package of ours: in the archive's root each would end the worker.
OWN_CODE = {
    "types.py": "from transformers import DistilBertConfig\nclass OwnConfig(DistilBertConfig): model_type = 'own'\n",
    "json.py": "from transformers import DistilBertForSequenceClassification as Base\nfrom .types import OwnConfig\n"
    "class OwnModel(Base):\n    config_class = OwnConfig\n",
    "handlers/__init__.py": "raise SystemExit('it is imported')\n",
    "text_classification.py": "raise SystemExit('it is imported')\n",
}
TRUSTING = {
    "class ColourNames(": "from handlers.text.config import TextConfig\n\n\nclass ColourNames(",
    "config_class = HandlerConfig": "config_class = TextConfig",
}


def lay(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # A safetensors file without tensors has the length of its header, and the header.
        prefix = b"\2\0\0\0\0\0\0\0" if name.endswith(".safetensors") else b""
        (folder / name).write_bytes(prefix + b"{}")


@pytest.mark.parametrize("with_code", [False, True])
def test_folder_links_what_is_served(with_code: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json"}
    # A trainer's folder has whole checkpoints below it.
    others = ["README.md", "pytorch_model.bin", "checkpoint-500/config.json", "checkpoint-500/model.safetensors"]
    lay(tmp_path, *wanted, *others, "modeling_own.py", "vocab.py/x.py")
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))
    with open_checkpoint(MODEL, source(MODEL, str(tmp_path)), with_code=with_code) as folder:
        assert files(folder) == wanted | ({"modeling_own.py", "vocab.py/x.py"} if with_code else set())
        assert all((folder / name).is_symlink() for name in wanted)
    assert "left out of the archive: checkpoint-500/, pytorch_model.bin\n" in capsys.readouterr().err


def test_pickle_of_a_module_is_packed_as_safetensors_and_no_kernel_is_fetched(tmp_path: Path) -> None:
    lay(tmp_path, "config.json", "model.safetensors", "modules.json", "2_Dense/config.json")
    (tmp_path / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Dense"}]))
    state = torch.nn.Linear(3, 2).state_dict(prefix="linear.")
    torch.save(state, tmp_path / "2_Dense" / "pytorch_model.bin")
    with open_checkpoint(MODEL, source(MODEL, str(tmp_path))) as folder:
        assert {path.name for path in (folder / "2_Dense").iterdir()} == {"config.json", "model.safetensors"}
        found = safetensors.torch.load_file(folder / "2_Dense" / "model.safetensors")
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)
    (tmp_path / "2_Dense" / "pytorch_model.bin").write_bytes(b"cos\nmkdir\n(tR.")
    with pytest.raises(WeightsUnavailable, match=r"2_Dense/pytorch_model\.bin is not a whole file"):
        open_checkpoint(MODEL, source(MODEL, str(tmp_path))).__enter__()
    weights = checkpoint(tmp_path / "w", "bert", "text_classification", ("NO", "YES"))
    config = json.loads((weights / "config.json").read_text())
    chosen = dict.fromkeys(("_attn_implementation", "attn_implementation"), "kernels-community/flash-attn2")
    experts = {"text_config": {"_experts_implementation": 1}}
    (weights / "config.json").write_text(json.dumps(config | chosen | experts))
    with open_checkpoint(MODEL, source(MODEL, str(weights))) as folder:
        assert json.loads((folder / "config.json").read_text()) == config | {"text_config": {}}
        network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert network.config._attn_implementation in ("sdpa", "eager")


def test_weights_of_each_task_with_checkpoints_may_be_on_the_hub() -> None:
    for name in BUILT_IN:
        entry = replace(MODEL, handler=name)
        if name in ("language_id", "tensors", "stock"):
            with pytest.raises(WeightsUnavailable, match="no file somebody/something"):
                source(entry, "somebody/something")
        else:
            assert source(entry, "somebody/something").kind == "hub"


@pytest.mark.parametrize("with_weights", [False, True])
def test_hub_has_the_named_revision(with_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, identities, weights = [], set(), {"model.safetensors", "model.safetensors.index.json"}
    wanted = {"config.json", "tokenizer.json"} | (weights if with_weights else set())

    def snapshot_download(hub_id: str, *, revision: str | None, ignore_patterns: list[str]) -> str:
        asked.append((hub_id, revision))
        there = ["config.json", "tokenizer.json", "model.bin", *weights]
        lay(tmp_path, *(name for name in there if not any(fnmatch(name, pattern) for pattern in ignore_patterns)))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for named in ({"hub": "a/b"}, {"hub": "a/b", "revision": "v1"}, {"hub": "a/b", "revision": "v2"}):
        entry = ModelEntry(MODEL.name, MODEL.handler, MODEL.version, MODEL.folder, weights=named)
        origin = source(entry, None)
        identities.add(origin.identity)
        with open_checkpoint(entry, origin, with_weights=with_weights) as folder:
            assert files(folder) == files(tmp_path) == wanted
    assert (asked, len(identities)) == ([("a/b", None), ("a/b", "v1"), ("a/b", "v2")], 3)


@pytest.mark.builds
def test_trusted_code_is_served_off_the_workers_path(archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = archive_sh.write_list("own", "text_classification", config={"trust_remote_code": True})
    weights = checkpoint(folder / "weights", "distilbert", "text_classification", labels=("NO", "YES"))
    mapped = {"AutoConfig": "types.OwnConfig", "AutoModelForSequenceClassification": "json.OwnModel"}
    change_json(weights / "config.json", model_type="own", auto_map=mapped)
    lay(weights, *OWN_CODE)
    for name, code in OWN_CODE.items():
        (weights / name).write_text(code)
    archive_sh("own", "--weights", str(weights), "--engine", "torch")
    archive = archive_sh.store / "own"
    staged = {name for name in files(archive) if name.endswith(".py")}
    assert {f"checkpoint/{name}" for name in OWN_CODE} == {name for name in staged if name.startswith("checkpoint/")}
    assert {name for name in staged if "/" not in name} == {"text_classification.py"}
    # Into a separate folder; the build has run it already, as a worker will.
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(archive_sh.folder / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = TextClassificationConfig(trust_remote_code=True, engine="torch")
    task = load_task("text_classification", archive, settings)
    (item,) = task.prepare([decode(task, Payload("A text."))])
    ((answer,),) = task.split(task.forward(task.collate([item]), [item]), [item])
    assert answer["label"] in ("NO", "YES") and list((archive_sh.folder / "modules").rglob("json.py"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_task("text_classification", archive, replace(settings, trust_remote_code=False))


def spoil(colours: Path, change: dict[str, str]) -> None:
    """Replace each text in whichever of the example's files has it."""
    written = [path for path in colours.parent.rglob("*") if path.suffix in (".py", ".yaml")]
    for old, new in change.items():
        holding = [path for path in written if old in path.read_text()]
        assert holding, f"the example has no {old!r}"
        for path in holding:
            path.write_text(path.read_text().replace(old, new, 1))


@table(
    ({"class ColourNames": "if True:\n    class Other: pass\nclass ColourNames"}, "2 classes (Other, ColourNames)"),
    ({"\nColour = ": "\ndef handle(data, context): ...\n\nColour = "}, "TorchServe would call `handle` at its"),
    ({"class ColourNames(BatchHandler[HandlerConfig, Colour]):": "class ColourNames:"}, "is not a BatchHandler"),
    ({'("palette.csv",)': 'tuple(["palette.csv"])'}, "staged_files must be a literal"),
    ({'("palette.csv",)': '("../models.yaml",)'}, "staged_files: ../models.yaml is outside the model's folder"),
    ({"def collate(": "def colate("}, "colour_names.py: ColourNames lacks collate"),
    (
        {"import csv": "import nobodys_package"},
        "colour_names.py:3: ModuleNotFoundError: No module named 'nobodys_package'; add its package",
    ),
    ({"\nColour = ": '\nimport collections\nP = collections.namedtuple("P", "x")\nColour = '}, "2 classes (P, Col"),
    (
        {"self.archive.model_dir": "self.model_dir"},
        "colour_names.py:27: self.model_dir is replaced by self.archive.",
    ),
    (
        {"    staged_files": "    is_repeatable = False\n    staged_files"},
        "ColourNames: is_repeatable is replaced by Results(is_repeatable=...); see",
    ),
    ({"max_batch_items: 32": "max_batch_itmes: 32"}, "colours: handler: max_batch_itmes: unknown name (did you"),
)
def test_unservable_task_is_one_line(change: dict[str, str], words: str, archive_sh: ArchiveSh, colours: Path) -> None:
    spoil(colours, change)
    assert words in archive_sh.rejected("colours") and not (archive_sh.store / "colours").exists()


@table(
    ({"self.names[index]}": "self.nmes[index]}"}, "colour_names.py:49: AttributeError: 'ColourNames' object has"),
    ({"items, strict=True)]": "items, strict=True)][:1]"}, "colour_names.py:48: split returned 1 results for 3 items"),
    ({"self.names[index]}": "self}"}, "colour_names.py:48: split returned a result that JSON cannot represent: "),
    (
        {'Payload("#d2691e")': 'Payload("red")'},
        "colour_names.py:42: CorruptInput: colour: must be #rrggbb.; `sample` must",
    ),
    (
        {"np.stack(items)": "np.stack(items) if len(items) < 2 else items.x"},
        "colour_names.py:46: AttributeError: 'list'",
    ),
    ({'"palette.csv").open': '"palete.csv").open'}, "colour_names.py:27: FileNotFoundError: "),
)
def test_bug_of_a_task_is_the_line_of_its_file(
    change: dict[str, str], words: str, archive_sh: ArchiveSh, colours: Path
) -> None:
    spoil(colours, change)
    assert words in archive_sh.rejected("colours") and not (archive_sh.store / "colours").exists()


@table(
    (["packaging", "no-such-package>=2"], "not installed here: no-such-package>=2; "),
    (["packaging>=999"], "not installed here: packaging>=999 (installed is "),
    (["../x"], "requirements: ../x: "),
    ("needs.txt", "requirements: no file needs.txt beside the list"),
)
def test_requirement_that_is_missing_is_one_line_with_the_command(
    needs: Any, words: str, archive_sh: ArchiveSh, colours: Path
) -> None:
    entry = {"task": "colour_names.py", "version": "1.0", "requirements": needs}
    archive_sh.models.write_text(yaml.safe_dump({"colours": entry}))
    rejected = archive_sh.rejected("colours")
    assert words in rejected
    if "not installed" in rejected:
        assert f"{sys.executable} -m pip install " in rejected


@pytest.mark.builds
def test_requirements_of_a_project_are_checked_again_where_its_archive_loads(
    archive_sh: ArchiveSh, colours: Path
) -> None:
    lines = ["# of the task", "packaging >= 1  # compared", "-i https://example.org", 'none; python_version < "3"', ""]
    (archive_sh.folder / "requirements.txt").write_text("\n".join(lines))
    archive_sh("colours")
    folder = archive_sh.store / "colours"
    assert archive_sh.build("colours")["requirements"] == ["packaging >= 1"]
    assert check(folder) is not None
    build = replace(Build.from_json((folder / "build.json").read_bytes()), requirements=["no-such-package>=2"])
    (folder / "build.json").write_text(build.to_json())
    with pytest.raises(InvalidConfig, match="not installed in the worker's environment: no-such-package>=2"):
        check(folder)


@table(
    ("csv.py", "colours: task: csv.py: it has the name of a module of the standard library, which it would hide"),
    ("types.py", "types.py: it has the name of a module of the standard library"),
    ("colour-names.py", "colour-names.py: colour-names is not a valid name of a Python module"),
)
def test_task_named_like_a_module_is_one_line(name: str, words: str, archive_sh: ArchiveSh, colours: Path) -> None:
    if name == "csv.py":  # beside the task
        (archive_sh.folder / name).write_text("")
    else:
        (archive_sh.folder / "colour_names.py").rename(archive_sh.folder / name)
        spoil(colours, {"task: colour_names.py": f"task: {name}"})
    assert words in archive_sh.rejected("colours")


@pytest.mark.parametrize("name", ["handlers/base.py", "types.py", "email/message.py", "build.json"])
def test_file_that_would_hide_the_workers_own_is_not_staged(name: str, archive_sh: ArchiveSh, colours: Path) -> None:
    (colours / name).parent.mkdir(exist_ok=True)
    (colours / name).write_text("")
    spoil(colours, {'("palette.csv",)': f'("palette.csv", "{name}")'})
    assert f"colours: {name.partition('/')[0]} cannot be staged" in archive_sh.rejected("colours")


@pytest.mark.builds
@pytest.mark.parametrize(("kind", "trusted"), [("hub", True), ("hub", False), ("folder", None)])
def test_code_of_a_checkpoint_is_packed_only_where_the_settings_trust_it(
    kind: str, trusted: bool | None, archive_sh: ArchiveSh, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted is not None:
        spoil(colours, {**TRUSTING, "max_batch_items: 32": f"trust_remote_code: {json.dumps(trusted)}"})
    source = archive_sh.folder / "source"
    lay(source, "config.json", "model.safetensors", "modeling_own.py", "deep/types.py")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(source))
    archive_sh("colours", "--weights", "somebody/something" if kind == "hub" else str(source))
    staged, code = files(archive_sh.store / "colours" / "checkpoint"), {"modeling_own.py", "deep/types.py"}
    assert "config.json" in staged
    assert {name for name in staged if name.endswith(".py")} == (code if trusted else set())
