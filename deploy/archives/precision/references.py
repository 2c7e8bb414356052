"""Answers to samples by the library that owns a checkpoint: it makes tokens and segments, and reads the modules.

sentence embedding -> SentenceTransformer.encode, if sentence-transformers is installed
any other task     -> AutoTokenizer on the texts, and the model of transformers
"""

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from deploy.archives.precision.inputs import fit_sample
from handlers.checkpoints import load_tokenizer
from handlers.errors import InvalidConfig, reason
from handlers.protocol.requests import Payload
from handlers.text.encoders import SEGMENTS, Encoder
from handlers.text.sentence_files import read_json

# Samples that are compared from their text on; rows of other lengths are compared by their tokens.
MOST = 4
OWNER = "sentence_transformers"


def choose_samples(task: Any, payloads: Sequence[Payload]) -> list[tuple[Any, str]]:
    """Return the first samples, cut to fit into one row, as items with their texts; a classifier gets a pair of texts.

    Raises:
        InvalidConfig: the model accepts no text, so nothing can be compared.
    """
    found: list[tuple[Any, str]] = []
    if getattr(task, "takes_pairs", False):
        first, second = (str(each.value) for each in payloads[:2])
        payloads = [Payload(first, {"text_pair": second}), *payloads]

    def fits(item: Any) -> bool:
        windows = getattr(item, "windows", [item])
        return len(windows) == 1 and len(windows[0].ids) < task.max_length

    for payload in payloads:
        if len(found) < MOST and (sample := fit_sample(task, payload, fits)):
            found.append((sample[0], str(sample[1].value)))
    if not found:
        raise InvalidConfig(
            f"max_length {task.max_length}: a text of one word has more tokens, so nothing was compared"
        )
    return found


def answer(
    task: Any, encoder: Encoder, source: Path, samples: Sequence[tuple[Any, str]]
) -> tuple[str, list[list[Any]]]:
    """Answer samples one by one, in fp32; return the library's name and the outputs of each sample.

    Raises:
        InvalidConfig: the library cannot answer.
    """
    is_code, library = task.config.trust_remote_code, "transformers"
    try:
        if task.head.is_pooled and importlib.util.find_spec(OWNER):
            library = "sentence-transformers"
            return library, [*_embed(source, [text for _, text in samples], trust_remote_code=is_code)]
        if task.head.is_pooled:
            library = "transformers, with modules as read here,"
        tokenizer = load_tokenizer(source, trust_remote_code=is_code)
        return library, [_run_model(encoder, tokenizer, source, item) for item, _ in samples]
    except Exception as error:
        raise InvalidConfig(f"{library} itself cannot answer a sample: {reason(error)}") from error


def _embed(source: Path, texts: Sequence[str], *, trust_remote_code: bool) -> Iterator[list[Any]]:
    logging.getLogger(OWNER).setLevel(logging.ERROR)
    library: Any = importlib.import_module(OWNER)
    options = {"device": "cpu", "local_files_only": True, "trust_remote_code": trust_remote_code}
    model = library.SentenceTransformer(str(source), model_kwargs={"dtype": torch.float32}, **options)
    for text in texts:
        yield [model.encode([text], show_progress_bar=False)[0]]


@torch.no_grad()
def _run_model(encoder: Encoder, tokenizer: Any, source: Path, item: Any) -> list[Any]:
    """Tokenise the text again; a model of several segments gets the tokenizer's, unless its file lists its inputs."""
    texts = (item.question, item.text) if hasattr(item, "question") else (item.text, item.pair)
    stated = read_json(source / "tokenizer_config.json").get("model_input_names")
    several = (getattr(encoder.model.config, "type_vocab_size", None) or 0) > 1
    is_segmented = (True if several else None) if not stated else SEGMENTS in stated
    found = tokenizer(*texts, return_tensors="pt", return_token_type_ids=is_segmented)
    inputs = {name: found[name] for name in found if name in signature(encoder.model.forward).parameters}
    if encoder.pooling is not None:
        return [encoder(**inputs)[0][0].numpy()]
    result = encoder.model(**inputs)
    return [result[name][0].numpy() for name in encoder.output_names]
