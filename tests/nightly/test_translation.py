"""Translation with real weights: CTranslate2 answers as transformers does, and int8 much as fp32."""

import shutil
from pathlib import Path

import pytest
import sacrebleu
import yaml

from deploy.archives.__main__ import main
from deploy.archives.stagers.translation import translate
from deploy.archives.tasks import load_task
from deploy.models import ROOT
from handlers.text.config import TranslationConfig
from tests import held_out

# Beside a checkout on the development machines only.
REAL = ROOT.parent / "shared" / "models" / "opus-mt-en-fr"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real weights are not there")
def test_real_model_answers_as_transformers_does_in_fp32_and_much_so_in_int8(tmp_path: Path) -> None:
    """chrF, not equal texts: a greedy search takes another word where two are as likely, but for rounding."""
    texts = [line.decode() for part in held_out.sentences() for line in part]
    assert len(texts) == 200
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"real": {"task": "translation", "version": "1"}}))
    (tmp_path / "real").mkdir()
    shutil.copy(ROOT / "examples" / "translation" / "samples.txt", tmp_path / "real")
    places = ["--models", str(tmp_path / "models.yaml"), "--archive-format", "no-archive"]

    def answered(precision: str, engine: str) -> list[str]:
        config = TranslationConfig(precision=precision, engine=engine, max_new_tokens=256)  # type: ignore[arg-type]
        settings = {"handler": {"precision": precision, "max_new_tokens": 256}}
        (tmp_path / "real" / "model-config.yaml").write_text(yaml.safe_dump(settings))
        store = tmp_path / f"{precision}-{engine}"
        arguments = ["real", *places, "--export-path", str(store), "--weights", str(REAL), "--engine", engine]
        assert main([*arguments, *(["--min-chrf", "95"] if engine == "auto" else [])]) == 0
        return translate(load_task("translation", store / "real", config), texts)

    original = answered("fp32", "torch")
    for precision, least in (("fp32", 99.5), ("int8", 95.0)):
        found = answered(precision, "auto")
        assert sacrebleu.corpus_chrf(found, [original]).score >= least, precision
