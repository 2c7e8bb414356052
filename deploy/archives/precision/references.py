"""Answers to samples by the library that owns a checkpoint: it makes tokens and segments, and reads the modules.

embeddings         -> encode, encode_query, encode_document of the head's class } if sentence-transformers
reranking          -> CrossEncoder.predict                                      } is installed
any other task     -> AutoTokenizer on the texts, and the model of transformers
"""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from deploy.archives.differences import Array
from deploy.archives.precision.inputs import fit_sample
from handlers.checkpoints import load_tokenizer
from handlers.errors import InvalidConfig, reason
from handlers.protocol.requests import Payload
from handlers.text.encoder_modules import Encoder
from handlers.text.encoders import SEGMENTS, STATES
from handlers.text.handler import TextHandler
from handlers.text.inputs import Text
from handlers.text.sentence_files import read_json
from handlers.text.token_networks import Heads
from torchserve_client.payloads import Json

TextTask = TextHandler[Any, Any]

MOST = 4  # samples that are compared from their text on; rows of other lengths are compared by their tokens
OWNER = "sentence_transformers"
# Arguments of `encode` for the outputs of a graph.
FORMS: dict[str, Json] = {
    "SparseEncoder": {"convert_to_sparse_tensor": False},
    "MultiVectorEncoder": {"output_value": None},
}
SCORE_TOLERANCE = 1e-4  # the largest error of a score by the same logit


def choose_samples(task: TextTask, payloads: Sequence[Payload]) -> list[tuple[Text[Any], Payload]]:
    """Return the first samples, cut to fit into one row; pairs for a classifier, a query and a document to embed."""
    found: list[tuple[Text[Any], Payload]] = []
    if getattr(task, "takes_pairs", False):
        first, second = (str(each.value) for each in payloads[:2])
        payloads = [Payload(first, {"text_pair": second}), *payloads]
    if task.head.owner:
        # No model runs for queries with static weights.
        sides = ("query", "document") if getattr(task, "query_weights", None) is None else ("document",)
        kinds = [{"input_type": kind} for kind in sides]
        payloads = [*(Payload(payloads[0].value, kind) for kind in kinds), *payloads]

    def fits(item: Text[Any]) -> bool:
        windows = getattr(item, "windows", [item])
        return len(windows) == 1 and len(windows[0].ids) < task.max_length

    for payload in payloads:
        if len(found) < MOST and (sample := fit_sample(task, payload, fits)):
            found.append(sample)
    if not found:
        raise InvalidConfig(
            f"max_length {task.max_length}: a text of one word has more tokens, so nothing was compared"
        )
    return found


def answer(
    task: TextTask, encoder: Encoder, source: Path, samples: Sequence[tuple[Text[Any], Payload]]
) -> tuple[str, list[list[Array]]]:
    """Answer samples one by one, in fp32; return the library's name and the outputs of each sample."""
    is_code, library, is_reranker = task.config.trust_remote_code, "transformers", "activation" in vars(task)
    try:
        # The library has no class for bge-m3's heads.
        is_owned = task.head.owner and not isinstance(encoder.pooling, Heads)
        if (is_owned or is_reranker) and importlib.util.find_spec(OWNER):
            library = "sentence-transformers"
            ask = _rank if is_reranker else _embed
            return library, [*ask(task, source, [each for _, each in samples], trust_remote_code=is_code)]
        if encoder.pooling is not None:
            library = "transformers, with modules as read here,"
        tokenizer = load_tokenizer(source, trust_remote_code=is_code)
        return library, [_run_model(encoder, tokenizer, source, item) for item, _ in samples]
    except InvalidConfig:
        raise
    except Exception as error:
        raise InvalidConfig(f"{library} itself cannot answer a sample: {reason(error)}") from error


def _load(kind: str, source: Path, *, trust_remote_code: bool) -> Any:
    logging.getLogger(OWNER).setLevel(logging.ERROR)
    options = {"device": "cpu", "local_files_only": True, "trust_remote_code": trust_remote_code}
    return getattr(importlib.import_module(OWNER), kind)(str(source), model_kwargs={"dtype": torch.float32}, **options)


def _embed(
    task: TextTask, source: Path, samples: Sequence[Payload], *, trust_remote_code: bool
) -> Iterator[list[Array]]:
    owner = task.head.owner
    model = _load(owner, source, trust_remote_code=trust_remote_code)
    has_states = STATES in task.head.outputs
    form = {"output_value": None} if has_states else FORMS.get(owner, {})
    for each in samples:
        kind = each.options.get("input_type")
        encode = getattr(model, f"encode_{kind}" if kind else "encode")
        found = encode([str(each.value)], show_progress_bar=False, **form)[0]
        parts = [found["token_embeddings"]] if isinstance(found, dict) else [found]
        whole = [each for name, each in found.items() if name.endswith("_embedding")] if has_states else []
        yield [np.asarray(part) for part in (*whole, *parts)]


def _rank(
    task: TextTask, source: Path, samples: Sequence[Payload], *, trust_remote_code: bool
) -> Iterator[list[Array]]:
    """Yield the logits of pairs, whose scores by the task must be the library's."""
    model = _load("CrossEncoder", source, trust_remote_code=trust_remote_code)
    for each in samples:
        value: Any = each.value
        pair = [(str(value["query"]), str(value["document"]))]
        logits = model.predict(pair, activation_fn=torch.nn.Identity(), show_progress_bar=False)
        score = float(model.predict(pair, show_progress_bar=False)[0])
        own = float(task.activation(logits).flatten()[0])
        if abs(own - score) > SCORE_TOLERANCE:
            raise InvalidConfig(
                f"reranking: sentence-transformers scores a pair {score:.4g}, not {own:.4g}; write a task"
            )
        yield [logits.reshape(-1)]


@torch.no_grad()
def _run_model(
    encoder: Encoder, tokenizer: transformers.PreTrainedTokenizerBase, source: Path, item: Text[Any]
) -> list[Array]:
    """Tokenise the text again; a model of several segments gets the tokenizer's, unless its file lists its inputs."""
    texts = (item.question, item.text) if hasattr(item, "question") else (item.text, item.pair)
    stated = read_json(source / "tokenizer_config.json").get("model_input_names")
    several = (getattr(encoder.model.config, "type_vocab_size", None) or 0) > 1
    is_segmented = (True if several else None) if not stated else SEGMENTS in stated
    found = tokenizer(*texts, return_tensors="pt", return_token_type_ids=is_segmented)
    inputs = {name: found[name] for name in found if name in signature(encoder.model.forward).parameters}
    if encoder.pooling is not None:
        return [each[0].numpy() for each in encoder(**inputs)]
    result = encoder.model(**inputs)
    return [result[name][0].numpy() for name in encoder.output_names]
