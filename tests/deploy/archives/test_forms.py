"""Forms of checkpoints that no task serves: one line says what each is, and the way out."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from handlers.checkpoints import load_strictly
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table
from tests.tiny_models import checkpoint

METHODS: dict[str, dict[str, Any]] = {
    "gptq, 4 bits": {"quant_method": "gptq", "bits": 4},
    "awq, 4 bits": {"quant_method": "awq", "bits": 4},
    "bitsandbytes, 4 bits": {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False},
    "bitsandbytes, 8 bits": {"load_in_8bit": True},
    "hqq": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}},
    **{name: {"quant_method": name} for name in ("compressed-tensors", "fp8", "aqlm", "quanto", "torchao", "eetq")},
}
ORIGINAL = "name the original checkpoint, in fp32, bf16 or fp16"
SHARDS = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
JINA = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}
NEW = {"model_type": "new", "auto_map": {"AutoModel": "modeling.NewModel"}}
TRUST = "set trust_remote_code: true in model-config.yaml"
EMPTY = b"\2\0\0\0\0\0\0\0{}"  # a file of safetensors without tensors


def config(**settings: Any) -> dict[str, Any]:
    return {"config.json": {"model_type": "bert", **settings}, "model.safetensors": EMPTY}


@table(
    *(({}, config(quantization_config=each), f"quantised ({name}); {ORIGINAL}") for name, each in METHODS.items()),
    ({}, config(compression_config={"quant_method": "compressed-tensors"}), "are quantised (compressed-tensors)"),
    ({}, config(**NEW), f"author's code (modeling.NewModel) is the model's AutoModel; {TRUST}"),
    ({}, config(auto_map=NEW["auto_map"]), "or remove auto_map, if transformers' own bert answers as well"),
    (
        {},
        {**config(), "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.Own", None]}}},
        "code (own.Own) is",
    ),
    ({"trust_remote_code": True}, config(**NEW), "no modeling.py, the code of AutoModel, in the folder"),
    ({"trust_remote_code": True}, config(auto_map=JINA), "code of another repository, jinaai/jina-bert-implementation"),
    ({}, config(model_type="new"), "does not have model_type new; if its author has code for it"),
    ({}, {**config(), "model.safetensors.index.json": SHARDS}, "model-00001-of-00002.safetensors and 1 more, which"),
    (
        {},
        {"config.json": {}, "tf_model.h5": b"h"},
        "tf_model.h5 has weights of TensorFlow; load them with transformers 4",
    ),
    ({}, {"config.json": {}, "flax_model.msgpack": b"h"}, "flax_model.msgpack has weights of Flax; load them"),
    ({}, {"config.json": {}, "onnx/model.onnx": b"h"}, "onnx/model.onnx has a graph in ONNX; name the original"),
    ({}, {"config.json": {}, "model.gguf": b"h"}, "quantised weights for llama.cpp"),
    *(
        ({}, {"config.json": {}, "training_args.bin": b"h", name: b"h"}, words)
        for name, words in (
            ("bert_model.ckpt.index", "bert_model.ckpt.index has weights of TensorFlow 1; name the same model"),
            ("openvino/openvino_model.xml", "openvino/openvino_model.xml has a graph for OpenVINO; name the original"),
            ("rust_model.ot", "rust_model.ot has weights of Rust; name the original"),
        )
    ),
    *(
        ({}, config(id2label=names), 'id2label needs names by number: {"0": "NAME"')
        for names in (["a", "b"], {"LABEL_0": "a"})
    ),
    ({}, {**config(), "config.json": {"hidden_size": 4}}, "config.json has no model_type; add that of the model's"),
    *(
        ({}, {"config.json": {"model_type": "bert"}, name: EMPTY}, f"{name} is not read without model.safetensors or")
        for name in ("model.fp16.safetensors", "model-00001-of-00002.safetensors")
    ),
    ({}, {**config(), "tokenizer_config.json": []}, "tokenizer_config.json: not a JSON object"),
    ({}, {**config(), "model.safetensors.index.json": []}, "model.safetensors.index.json: not a JSON object"),
    ({}, config(model_type="tapas"), "tapas: it answers questions about tables, which no task accepts"),
    ({"task": "token_classification"}, config(model_type="canine"), "canine: its tokens are characters without places"),
    ({"task": "object_detection"}, config(model_type="owlv2"), "owlv2: it finds objects that a request names"),
    ({"task": "object_detection"}, config(model_type="grounding-dino"), "use a detector such as DETR"),
)
def test_form_that_is_not_served_is_one_line(settings: Any, given: Any, words: str, archive_sh: ArchiveSh) -> None:
    task = settings.pop("task", "text_classification")
    archive_sh.write_list("own", task, config=settings)
    folder = archive_sh.folder / "weights"
    for name, content in given.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    line = archive_sh.rejected("own", "--weights", str(folder))
    assert line.startswith(f"own: {folder}: ") and words in line


LAYER = "bert.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize("auto_class", ["AutoModelForSequenceClassification", "AutoModel"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{LAYER}.lora_A.default.weight", r"merge_and_unload\(\)"),
        ("bert.encoder.layer.0.output.adapters.x.adapter_down.0.weight", r"merge_and_unload\(\)"),
        (f"{LAYER}.SCB", ORIGINAL),
        (f"{LAYER}.weight_scale_inv", ORIGINAL),
        (f"{LAYER}.qweight", ORIGINAL),
        (f"{LAYER}.weight.absmax", ORIGINAL),
        ("bert.embeddings.LayerNorm.gain", "does not use; correct config.json"),
        # Buffers and heads of other tasks.
        ("bert.embeddings.position_ids", None),
        ("cls.predictions.transform.dense.weight", None),
        ("bert.encoder.layer.0.attention.rotary_emb.inv_freq", None),
    ],
)
def test_weights_without_a_place_in_a_layer_are_rejected(
    name: str, words: str | None, auto_class: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, "bert", "text_classification") / "model.safetensors"
    state = {**safetensors.torch.load_file(path), name: torch.ones(3)}
    safetensors.torch.save_file(state, path, {"format": "pt"})
    options = {"unused": r"(^|\.)pooler\."} if auto_class == "AutoModel" else {}
    if words is None:
        load_strictly(auto_class, tmp_path, **options)
        return
    with pytest.raises(InvalidConfig, match=words):
        load_strictly(auto_class, tmp_path, **options)
