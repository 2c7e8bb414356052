"""An archive answers texts, alone and together, as transformers answers each alone; or it is not built."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml

from deploy.archives.tasks import load_task
from handlers.config import parse
from handlers.protocol.requests import Payload
from handlers.text.config import TextClassificationConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.nightly import families
from tests.tiny_models import checkpoint

pytestmark = pytest.mark.builds

TEXTS = ["the river", "Anna Berg kept the inn at Lindau.", "the mayor wrote a letter " * 12, "x", "stone " * 40]
# A classifier with a branch on the number of its tokens, which a trace does not see.
BRANCH = """
from transformers import DistilBertForSequenceClassification


class Own(DistilBertForSequenceClassification):
    def forward(self, input_ids=None, attention_mask=None, **options):
        result = super().forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        if input_ids.shape[1] > 20:
            result["logits"] = -result["logits"]
        return result
"""


def built(archive_sh: ArchiveSh, weights: Path, *arguments: str, **config: Any) -> dict[str, Any]:
    archive_sh.write_list("own", "text_classification", config={"threads": 1, **config})
    archive_sh("own", "--weights", str(weights), *arguments)
    settings: dict[str, Any] = yaml.safe_load((archive_sh.store / "own" / "model-config.yaml").read_text())["handler"]
    return settings


@pytest.mark.parametrize(
    ("family", "padding"),
    [
        ("convbert", "exact"),  # its convolutions see padding
        ("gpt2:unpadded", None),
        ("xlnet", None),  # padded on the left
    ],
)
def test_archive_of_a_family_answers_as_transformers_alone_and_together(
    family: str, padding: str | None, archive_sh: ArchiveSh
) -> None:
    """tests/nightly/test_families.py has the others."""
    weights = archive_sh.folder / "weights"
    families.save(family, "AutoModelForSequenceClassification", weights)
    settings = built(archive_sh, weights)
    assert (settings["engine"], settings.get("padding")) == ("auto", padding)
    fidelity = json.loads((archive_sh.store / "own" / "build.json").read_bytes())["fidelity"]
    assert fidelity["largest_error"] < 1e-3
    config = parse(TextClassificationConfig, {**settings, "precision": "fp32"})
    task = load_task("text_classification", archive_sh.store / "own", config)
    items = task.prepare([task.decode(Payload(text)) for text in TEXTS])
    answers = task.forward(task.collate(items), items)["logits"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(weights).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    for text, answer in zip(TEXTS, answers, strict=True):
        with torch.no_grad():
            (expected,) = model(**tokenizer(text, return_tensors="pt")).logits.numpy()
        np.testing.assert_allclose(answer, expected, 0, 1e-3 * np.abs(expected).max())


def test_model_of_few_tokens_is_compared_on_texts_that_are_cut(archive_sh: ArchiveSh) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "bert", "text_classification")
    stated = json.loads((weights / "tokenizer_config.json").read_text())
    (weights / "tokenizer_config.json").write_text(json.dumps({**stated, "model_max_length": 5}))
    built(archive_sh, weights)
    said = json.loads((archive_sh.store / "own" / "build.json").read_bytes())["fidelity"]["said"]
    assert re.search(r"of transformers on [1-9]\d* texts", said)


def test_model_that_remembers_earlier_texts_is_refused_with_the_lengths_that_agree(archive_sh: ArchiveSh) -> None:
    weights = archive_sh.folder / "weights"
    families.save("big_bird", "AutoModelForSequenceClassification", weights)
    archive_sh.write_list("own", "text_classification", config={"threads": 1})
    line = archive_sh.refused("own", "--weights", str(weights))
    assert "PyTorch differs from the model by " in line
    assert "max_length: 40 in model-config.yaml" in line


def test_graph_that_lacks_a_branch_of_its_model_is_left_to_pytorch_or_refused(archive_sh: ArchiveSh) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "distilbert", "text_classification", labels=("NO", "YES"))
    config = json.loads((weights / "config.json").read_text())
    mapped = {"AutoModelForSequenceClassification": "own.Own"}
    (weights / "config.json").write_text(json.dumps({**config, "auto_map": mapped}))
    (weights / "own.py").write_text(BRANCH)
    assert built(archive_sh, weights, trust_remote_code=True)["engine"] == "torch"
    line = archive_sh.refused("own", "--weights", str(weights), "--engine", "openvino")
    assert "OpenVINO differs from the model by " in line
    assert "on a text of 33 tokens; max_length: 17" in line
    assert "--engine torch" in line


def test_graph_without_the_segments_of_its_model_is_refused(
    archive_sh: ArchiveSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = checkpoint(archive_sh.folder / "weights", "bert", "question_answering")
    archive_sh.write_list("own", "question_answering", config={"threads": 1})
    monkeypatch.setattr("handlers.text.encoder_modules.INPUT_NAMES", ("input_ids", "attention_mask"))
    line = archive_sh.refused("own", "--weights", str(weights))
    assert line.startswith("own: OpenVINO differs from transformers by ")
