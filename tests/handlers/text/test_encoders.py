"""What a model's own files say of its limit and its pooling."""

import json
from pathlib import Path
from typing import Any

import pytest

from handlers.text.encoders import token_limit

BERT = {"max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0}
ROBERTA = {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 128}, "config.json": BERT}, 128),
        ({"sentence_xlm-roberta_config.json": {"max_seq_length": 16}, "config.json": BERT}, 16),
        ({"config.json": BERT}, 512),
        ({"config.json": ROBERTA}, 512),
        ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"config.json": BERT, "tokenizer_config.json": {"model_max_length": 384}}, 384),
    ],
)
def test_token_limit_is_what_the_models_files_say(files: dict[str, Any], limit: int | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert token_limit(tmp_path) == limit
