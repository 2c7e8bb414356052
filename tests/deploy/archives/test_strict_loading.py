"""Checkpoints whose files do not belong together are refused in one line, as they are built and as they are loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import sentencepiece
import transformers

from deploy.archives.sources import WeightsUnavailable
from deploy.archives.stagers.vision import read_labels
from deploy.archives.tasks import load_task
from deploy.models import ModelEntry
from handlers.checkpoints import load_tokenizer
from handlers.errors import InvalidConfig
from handlers.text.config import TextClassificationConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tiny_models import checkpoint, staged


def configured(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def labelled(*indices: int) -> dict[int, str]:
    return {index: f"label {index}" for index in indices}


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no head": (
        lambda folder: transformers.AutoModel.from_pretrained(folder).save_pretrained(folder),
        "the weights lack classifier.bias, classifier.weight, which AutoModelForSequenceClass",
    ),
    "two labels": (configured(id2label=labelled(0, 1)), "config.json names 2 labels, the model has 6 outputs"),
    "gaps": (configured(id2label=labelled(0, 1, 2, 3, 4, 9)), "id2label has 6 labels, but none for 5"),
    "too few layers": (configured(num_hidden_layers=1), "config.json has fewer layers than the weights"),
    "too many layers": (configured(num_hidden_layers=3), "the weights lack bert.encoder.layer.2."),
    "another width": (configured(intermediate_size=128), "has shape [64] in the weights, and [128] by config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
    "an adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge_and_unload()"),
    "a pickle alone": (lambda folder: (folder / "model.safetensors").rename(folder / "m.bin"), "a pickle is read only"),
}


@pytest.mark.builds
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_checkpoint_whose_files_do_not_belong_together_is_refused(mistake: str, archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "text_classification", config={})
    weights = checkpoint(folder / "weights", "bert", "text_classification")
    make, words = MISTAKES[mistake]
    make(weights)
    assert words in archive_sh.refused("own", "--weights", str(weights), "--engine", "openvino")


@pytest.mark.parametrize(
    ("task", "kind", "family"),
    [
        ("object_detection", "Detr", "rt_detr"),
        ("object_detection", "Yolos", "rt_detr"),
        ("image_segmentation", "MaskFormer", "segformer"),
    ],
)
def test_network_of_another_family_is_refused_with_the_task_that_serves_it(
    task: str, kind: str, family: str, archive_sh: ArchiveSh
) -> None:
    folder = archive_sh.write_list("own", task, config={})
    getattr(transformers, f"{kind}Config")().save_pretrained(folder)
    getattr(transformers, f"{kind}ImageProcessor")().save_pretrained(folder)
    safetensors.torch.save_file({}, folder / "model.safetensors")
    refusal = archive_sh.refused("own", "--weights", str(folder))
    assert refusal.startswith(f"own: {kind.lower()} is not supported by this task; supported families are {family}, ")
    assert refusal.endswith("with torch.onnx.export, and serve the file with task: tensors")


@pytest.mark.builds
def test_archive_whose_labels_are_not_its_graphs_outputs_is_not_loaded(tmp_path: Path) -> None:
    folder = staged(tmp_path, "distilbert", "text_classification")
    config = folder / "checkpoint" / "config.json"
    content = json.loads(config.read_text())
    config.unlink()
    config.write_text(json.dumps({**content, "id2label": labelled(0, 1)}))
    with pytest.raises(InvalidConfig, match="has 2 labels, and its model 6 outputs"):
        load_task("text_classification", folder, TextClassificationConfig(engine="openvino"))


def test_folder_with_a_bare_sentencepiece_model_has_a_tokenizer(tmp_path: Path) -> None:
    lines = iter(Path("tests/sentences_en.txt").read_text().splitlines())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=str(tmp_path / "spiece"), vocab_size=300, minloglevel=2
    )
    transformers.T5Config().save_pretrained(tmp_path)
    ids = load_tokenizer(tmp_path)("The bridge held.", add_special_tokens=False)["input_ids"]
    assert ids == sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model")).encode("The bridge held.")


def test_number_of_labels_is_refused_with_the_path_of_their_file_wherever_the_list_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = ModelEntry("own", "image_classification", "1", Path("own"))
    model.folder.mkdir()
    (model.folder / "index_to_name.json").write_text('{"0": "crane", "1": "tench", "2": "rose"}')
    with pytest.raises(
        WeightsUnavailable, match=r"4 classes; name them in own/index_to_name\.json, from 0 to 3; there"
    ):
        read_labels(model, "resnet18", 4)
