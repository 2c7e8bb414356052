"""Families of text encoders on CUDA graphs, with the CPU in place of a GPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

from handlers.engines import Budget, pad_array
from handlers.engines.torch import TorchEngine
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.text.encoder_modules import Encoder, load_encoder
from handlers.text.inputs import pad_rows
from tests.handlers.cpu_graphs import GPU, use_cpu_graphs
from tests.nightly.families import FAMILIES, save
from tests.nightly.test_families import TABLES

CLASSIFIER = "AutoModelForSequenceClassification"
# Nystromformer accepts one length.
SINGLE_LENGTH = {"nystromformer"}
# Padding changes their answers, so the handler runs each length by itself.
EXACT = {name for name, cells in TABLES[0].read().items() if "exact" in cells[0]}
LENGTHS, LENGTH = (3, 9, 14), 16


def load(name: str, folder: Path) -> Encoder:
    save(name, CLASSIFIER, folder)
    return load_encoder(TextClassificationHandler.head, folder).eval()


@pytest.mark.parametrize("name", sorted({*FAMILIES} - EXACT - SINGLE_LENGTH))
def test_padded_rung_equals_each_text_alone(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, recorder = load(name, tmp_path), use_cpu_graphs(monkeypatch)
    engine = TorchEngine(encoder, GPU, encoder.input_names, encoder.output_names, 1)
    config = encoder.model.config
    # Some find the end of a text by its last token.
    end = getattr(config, "eos_token_id", None) or 0
    rows = [[*np.random.default_rng(length).integers(10, 600, length - 1).tolist(), end] for length in LENGTHS]
    is_left = FAMILIES[name].tokenizer == "left"
    pad_id = getattr(config, "pad_token_id", None) or 0
    arrays = pad_rows(rows, LENGTH, pad_id, is_left=is_left)
    arrays["token_type_ids"] = pad_array([[0] * length for length in LENGTHS], LENGTH, 0)
    arrays = {each: arrays[each] for each in encoder.input_names}
    engine.record([{key: each[:1] for key, each in arrays.items()}], Budget(60.0, 2.0**31, 4))
    recorder.replays = 0
    found = engine.run(arrays)["logits"]
    assert recorder.replays == 1
    for row, logits in zip(rows, found, strict=True):
        alone = {"input_ids": row, "attention_mask": [1] * len(row), "token_type_ids": [0] * len(row)}
        with torch.inference_mode():
            (wanted,) = encoder(**{each: torch.tensor([alone[each]]) for each in encoder.input_names})
        assert np.abs(logits - wanted[0].numpy()).max() < 1e-4 * max(1.0, float(wanted.abs().max()))
