"""Tiny checkpoints of models beyond one vector, as sentence-transformers, PyLate and bge-m3's authors save them."""

import json
import string
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

from tests import exports
from tests.tiny_models import BERT_SIZES, LIMIT, byte_level, checkpoint

TYPE = "sentence_transformers.models."


def masked(folder: Path) -> Path:
    """Write a masked-language model whose logits are of both signs."""
    checkpoint(folder, "bert", "sentence_embedding")
    torch.manual_seed(2)
    network = transformers.BertForMaskedLM(transformers.AutoConfig.from_pretrained(folder))
    network.save_pretrained(folder)
    return exports.dated(folder)


def _library() -> Any:
    return import_module("sentence_transformers")


def splade(
    folder: Path, pooling: str = "max", activation: str = "relu", *, is_routed: bool = False, **model: Any
) -> Path:
    """Write what SparseEncoder saves; with a Router, queries have static weights."""
    parts = import_module("sentence_transformers.sparse_encoder.modules")
    transformer = _library().SparseEncoder(str(masked(folder / "masked")), device="cpu")[0]
    modules = [transformer, parts.SpladePooling(pooling, activation)]
    if is_routed:
        weights = torch.rand(len(transformer.tokenizer), generator=torch.Generator().manual_seed(3))
        static = parts.SparseStaticEmbedding(transformer.tokenizer, weights)
        router = import_module("sentence_transformers.base.modules").Router
        modules = [router.for_query_document(query_modules=[static], document_modules=modules)]
    prompts = {"prompts": {"query": "the river ", "document": ""}} if not is_routed else {}
    _library().SparseEncoder(modules=modules, device="cpu", **prompts, **model).save_pretrained(str(folder / "saved"))
    return exports.dated(folder / "saved")


def late(folder: Path, expansion: Any = None, **lengths: int) -> Path:
    """Write what MultiVectorEncoder saves."""
    checkpoint(folder / "plain", "bert", "sentence_embedding")
    torch.manual_seed(4)
    model = _library().MultiVectorEncoder(str(folder / "plain"), device="cpu", local_files_only=True)
    model[0].query_expansion = expansion
    for name, length in lengths.items():
        setattr(model[0], name, length)
    model[2].skiplist_words = list(string.punctuation)
    model.save_pretrained(str(folder / "saved"))
    return exports.dated(folder / "saved")


def pylate(folder: Path, **settings: Any) -> Path:
    """Write what PyLate 3 saves: its Dense, and its settings beside the model."""
    saved = late(folder)
    types = [f"{TYPE}Transformer", "pylate.models.Dense.Dense"]
    modules = [{"idx": at, "name": str(at), "path": ["", "1_Dense"][at], "type": kind} for at, kind in enumerate(types)]
    (saved / "modules.json").write_text(json.dumps(modules))
    dense = json.loads((saved / "1_Dense" / "config.json").read_text())
    own = {name: value for name, value in dense.items() if not name.startswith("module_")}
    (saved / "1_Dense" / "config.json").write_text(json.dumps(own))
    (saved / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LIMIT - 2, "do_lower_case": False}))
    (saved / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "ColBERT", **settings}))
    return exports.dated(saved)


def m3(folder: Path) -> Path:
    """Write the layout of bge-m3: XLM-R, its pooling, and two heads beside it."""
    names = {"cls_token": "<s>", "sep_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    names["mask_token"] = "<mask>"  # noqa: S105
    inputs = ["input_ids", "attention_mask"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), model_max_length=LIMIT, model_input_names=inputs, **names
    )
    fast.save_pretrained(folder)
    sizes: dict[str, Any] = {**BERT_SIZES, "type_vocab_size": 1, "initializer_range": 0.1}
    settings = transformers.XLMRobertaConfig(
        vocab_size=len(fast), max_position_embeddings=LIMIT + 2, pad_token_id=fast.pad_token_id, **sizes
    )
    torch.manual_seed(3)
    transformers.XLMRobertaModel(settings).save_pretrained(folder)
    for name, size in (("sparse_linear", 1), ("colbert_linear", 32)):
        torch.save(torch.nn.Linear(32, size).state_dict(), folder / f"{name}.pt")
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"idx": at, "name": str(at), "path": paths[kind], "type": TYPE + kind} for at, kind in enumerate(paths)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return exports.dated(folder)


# The templates by which sentence-transformers renders Qwen3's rerankers and mixedbread's second ones.
QWEN_TEMPLATE = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""
BREAD_TEMPLATE = """\
<|endoftext|><|im_start|>user
query: {{ (messages | selectattr("role", "eq", "query") | first).content[0].text }}
document: {{ (messages | selectattr("role", "eq", "document") | first).content[0].text }}
{{ rule }} Relevance:<|im_end|>
<|im_start|>assistant
"""


def judge(folder: Path, answers: tuple[int, ...] = (), template: str = QWEN_TEMPLATE, **settings: Any) -> Path:
    """Write a reranker on a decoder as CrossEncoder saves it: a classifier, or a language model and its answers."""
    special = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), padding_side="left", **special)
    tokenizer.chat_template, tokenizer.model_max_length = template or None, 2 * LIMIT
    tokenizer.save_pretrained(folder / "plain")
    sizes = {name: BERT_SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = transformers.AutoConfig.for_model(
        "qwen2" if answers else "qwen3",
        **{**sizes, "intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16, "num_labels": 1},
        **{"vocab_size": len(tokenizer), "max_position_embeddings": 2 * LIMIT, "initializer_range": 0.2},
        **{"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "use_sliding_window": False},
    )
    torch.manual_seed(5)
    kind = "Qwen2ForCausalLM" if answers else "Qwen3ForSequenceClassification"
    getattr(transformers, kind)(config).save_pretrained(folder / "plain")
    parts = import_module("sentence_transformers.base.modules")
    task = "text-generation" if answers else "sequence-classification"
    own = {name: settings.pop(name) for name in ("query_length", "processing_kwargs") if name in settings}
    modules = [parts.Transformer(str(folder / "plain"), transformer_task=task, **own)]
    if answers:
        score = import_module("sentence_transformers.cross_encoder.modules").LogitScore
        modules.append(score(*answers))
    _library().CrossEncoder(modules=modules, device="cpu", **settings).save_pretrained(str(folder / "saved"))
    return exports.dated(folder / "saved")
