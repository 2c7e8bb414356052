"""Folders of sentence-transformers, saved by the library itself, for the sweep of test_families.py; and older ones."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

from deploy.models import model
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from tests import exports
from tests.handlers.serving import serve, started
from tests.tiny_models import TEXTS, checkpoint

SIZE = 32
# Of the largest number of the vectors.
TOLERANCE = 1e-3
# Layout -> the modules after the transformer; in front of it stands the kind of that, if it is not BERT.
LAYOUTS: dict[str, Callable[[], list[torch.nn.Module]]] = {
    "mean, normalized": lambda: [st.Pooling(SIZE, "mean"), st.Normalize()],
    "cls": lambda: [st.Pooling(SIZE, "cls")],
    "max": lambda: [st.Pooling(SIZE, "max")],
    "mean_sqrt_len_tokens": lambda: [st.Pooling(SIZE, "mean_sqrt_len_tokens")],
    "weightedmean": lambda: [st.Pooling(SIZE, "weightedmean")],
    "lasttoken": lambda: [st.Pooling(SIZE, "lasttoken")],
    "all modes": lambda: [st.Pooling(SIZE, [*st.Pooling.POOLING_MODES])],
    "dense": lambda: [st.Pooling(SIZE, "mean"), st.Dense(SIZE, 16), st.Normalize()],
    "dense twice": lambda: [
        *(st.Pooling(SIZE, "cls"), st.Normalize()),
        st.Dense(SIZE, 24, bias=False, activation_function=torch.nn.Identity()),
        st.Dense(24, 48, activation_function=torch.nn.GELU()),
    ],
    "residual": lambda: [st.Pooling(SIZE, "mean"), *(st.Dense(each, 16, use_residual=True) for each in (SIZE, 16))],
    "layer norm": lambda: [st.Pooling(SIZE, ["cls", "max"]), st.LayerNorm(2 * SIZE), st.Dropout(0.5), st.Normalize()],
    "t5: dense": lambda: [st.Pooling(SIZE, "mean"), st.Dense(SIZE, 16, bias=False), st.Normalize()],
}


def layout(folder: Path, name: str) -> Path:
    base, saved = folder / "base", folder / "saved"
    checkpoint(base, "bert", "sentence_embedding")
    if name.startswith("t5"):
        torch.manual_seed(1)
        sizes = {"d_model": SIZE, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "initializer_factor": 2.0}
        transformers.T5EncoderModel(transformers.T5Config(vocab_size=1000, **sizes)).save_pretrained(base)
    torch.manual_seed(2)
    modules = LAYOUTS[name]()
    for module in modules:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, 0.5, 0.5)
    SentenceTransformer(modules=[st.Transformer(str(base)), *modules], device="cpu").save(str(saved))
    return saved


def test_older_files_lowercase_texts_cut_vectors_and_have_pickled_weights(tmp_path: Path) -> None:
    saved, archive = layout(tmp_path, "dense"), tmp_path / "archive"
    (saved / "sentence_bert_config.json").rename(saved / "sentence_roberta_config.json")
    for name, change in {
        "sentence_roberta_config.json": {"max_seq_length": 8, "do_lower_case": True},
        "config_sentence_transformers.json": {"truncate_dim": 12},
    }.items():
        content = json.loads((saved / name).read_text())
        (saved / name).write_text(json.dumps({**content, **change}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    tokenizer.backend_tokenizer.normalizer = None
    tokenizer.save_pretrained(saved)
    weights = saved / "2_Dense" / "model.safetensors"
    torch.save(transformers.modeling_utils.load_state_dict(weights), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    archive.mkdir()
    exports.taken(model("sentence-embedding"), str(exports.dated(saved)), archive)
    expected = SentenceTransformer(str(saved), device="cpu").encode([*TEXTS], batch_size=1)
    for engine in ("openvino", "torch"):
        settings = {"engine": engine, "precision": "fp32", "truncation": True}
        handler = started(SentenceEmbeddingHandler(), archive, settings)
        for answers in ([serve(handler, [text])[0] for text in TEXTS], serve(handler, [*TEXTS])):
            found = np.array([answer.body for answer in answers])
            assert np.abs(found - expected).max() < TOLERANCE * np.abs(expected).max(), engine
