"""The client's README: its programs run unchanged."""

import json
import re
from typing import Any

import pytest

from deploy.models import ROOT
from tests.client.conftest import serving

README = (ROOT / "client" / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
INFERENCE, MANAGEMENT = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
VECTOR = [0.25, -0.5]
PRINTED = ["[0.25, -0.5]\n", "[0.25, -0.5]\n1000\n8\n", "[8]\n"]


def answer(path: str, content_type: str, body: bytes) -> Any:
    """Respond for both APIs of a server with sentence-embedding, batch_size 8: a vector for each text."""
    if not body:
        return [{"modelName": "sentence-embedding", "batchSize": 8}]
    if content_type == "application/json":
        return {"predictions": [VECTOR] * len(json.loads(body)["instances"])}
    return VECTOR


@pytest.mark.parametrize(("program", "printed"), list(zip(PROGRAMS, PRINTED, strict=True)))
def test_readme_program_runs(program: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answer) as url:
        exec(program.replace(INFERENCE, url).replace(MANAGEMENT, url), {})  # noqa: S102 (the README's own words)
    assert capsys.readouterr().out == printed
