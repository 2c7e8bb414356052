"""Servers that run elsewhere are measured with one set of texts, each in its own form."""

from pathlib import Path

import pytest

from deploy.archives.archive import Recipe
from deploy.models import ModelEntry
from load.bench.elsewhere import main
from tests.hosts import is_ready, start
from tests.waiting import until

INFER = "def infer(text):\n    return {'length': text.astype(str)}\n"
CONFIG = "handler: {inputs: {text: {datatype: BYTES, shape: [-1, 1]}}}\n"


@pytest.mark.builds
def test_two_servers_are_a_table_and_one_that_rejects_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own := tmp_path / "lengths").mkdir()
    (own / "infer.py").write_text(INFER)
    (own / "model-config.yaml").write_text(CONFIG)
    entry = ModelEntry("lengths", "tensors", "1.0", own, {"path": "infer.py"})
    host = start(Recipe(entry, engine="auto", export_path=tmp_path / "store").build().path)
    try:
        until(lambda: is_ready(host))
        servers = [f"{name}=v2={host.url}/v2/models/lengths/infer" for name in ("ours", "again")]
        short = ["--seconds", "0.2", "--rounds", "1", "--tensor", "text"]
        assert main([*servers, *short]) == 0
        table = capsys.readouterr().out
        assert [line.split()[0] for line in table.splitlines() if "clients, texts/s" in line] == ["embeddings,"] * 2
        assert main([servers[0], f"tei=tei={host.url}/nowhere", *short]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("elsewhere: tei: no good response") and "404" in error
    finally:
        host.end()
    with pytest.raises(SystemExit):
        main([servers[0], "tei=http://x"])
    assert "expected NAME=FORM=URL, FORM one of predictions, tei, openai, v2" in capsys.readouterr().err
