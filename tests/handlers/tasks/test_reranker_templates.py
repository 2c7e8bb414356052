"""Rerankers whose folder has a chat template or a prompt, compared with sentence-transformers' CrossEncoder."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.errors import InvalidConfig
from handlers.tasks.reranking import RerankingHandler
from tests import exports, tiny_retrieval
from tests.handlers.serving import serve, started
from tests.tables import table
from tests.tiny_models import TEXTS

pytestmark = pytest.mark.builds

QUERY = "Who wrote the letter?"
DOCUMENTS = [*TEXTS, " the river rose. ", "the mayor burned the letter and the river rose " * 40]
INSTRUCTION: dict[str, Any] = {"prompts": {"web": "Given a web search query, retrieve passages"}}
RULE = {"processing_kwargs": {"chat_template": {"rule": "0 for not relevant, 1 for relevant."}}}
# Folder -> what CrossEncoder saves of it.
JUDGES: dict[str, dict[str, Any]] = {
    "classifier": {**INSTRUCTION, "default_prompt_name": "web", "query_length": 4},
    "language model": {"answers": (40, 41), "template": tiny_retrieval.BREAD_TEMPLATE, **RULE},
    "one answer": {"answers": (40,), "template": tiny_retrieval.BREAD_TEMPLATE, **RULE},
    "no template": {"answers": (40, 41), "template": "", **INSTRUCTION, "default_prompt_name": "web"},
}


def make(folder: Path, saved: Path, engine: Any = "torch") -> RerankingHandler:
    archive = exports.archived("reranking", saved, folder, {}, engine=engine)
    return started(RerankingHandler(), archive, {"precision": "fp32", "threads": 1, "engine": engine})


@table(*((name, "torch") for name in JUDGES), ("classifier", "openvino"), ("language model", "openvino"))
def test_scores_are_those_of_cross_encoder_alone_and_together(name: str, engine: Any, tmp_path: Path) -> None:
    saved = tiny_retrieval.judge(tmp_path / "weights", **JUDGES[name])
    (tmp_path / "archive").mkdir()
    handler = make(tmp_path / "archive", saved, engine)
    model = import_module("sentence_transformers").CrossEncoder(str(saved), device="cpu", local_files_only=True)
    expected = model.predict([(QUERY, each) for each in DOCUMENTS])
    assert np.ptp(expected) > 0.01
    bodies = [{"body": json.dumps({"query": QUERY, "document": each})} for each in DOCUMENTS]
    for answers in (serve(handler, bodies), [serve(handler, [each])[0] for each in bodies]):
        assert [answer.status for answer in answers] == [200] * len(bodies), answers
        np.testing.assert_allclose([answer.body["score"] for answer in answers], expected, atol=2e-5)


CHAT = "{% for each in messages %}{% if each.role == 'user' %}{{ each.content }}{% endif %}{% endfor %}assistant:"


@table(
    (CHAT, "does not render the query and the document; replace chat_template.jinja by one"),
    (CHAT.replace("user", "query"), "does not render the document;"),
    ("{{ raise_exception('roles must alternate') }}", "does not render a pair, .*roles must alternate; replace"),
)
def test_template_that_drops_a_text_is_rejected_in_one_line(template: str, words: str, tmp_path: Path) -> None:
    saved = tiny_retrieval.judge(tmp_path / "weights", template=template)
    (tmp_path / "archive").mkdir()
    with pytest.raises(InvalidConfig, match=words):
        make(tmp_path / "archive", saved)
