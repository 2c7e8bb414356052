import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploy import translation
from deploy.archive import Recipe, report
from deploy.fingerprint import export_fingerprint, label_of
from deploy.models import ROOT, Model, model
from deploy.sources import source
from deploy.tasks import task_of
from deploy.translation_quality import SAMPLES, answers, read_samples, similarity
from handlers.archive_files import check
from handlers.errors import InvalidConfig
from handlers.text.translation_config import TranslationConfig
from tests import tiny_seq2seq
from tests.tiny_seq2seq import SENTENCES


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_seq2seq.marian(tmp_path_factory.mktemp("marian"))


def entry(folder: Path, samples: list[str] | None = None, **settings: Any) -> Model:
    """A model of a list, with its folder."""
    own = folder / "tiny"
    own.mkdir()
    settings = {"threads": 1, "max_new_tokens": 12, **settings}
    (own / "model-config.yaml").write_text(json.dumps({"handler": settings}))
    if samples is not None:
        (own / SAMPLES).write_text("\n".join(["# a line that is no sample", *samples, ""]))
    return Model(name="tiny", handler="translation", version="1.0", folder=own)


def staged(model: Model, checkpoint: Path, folder: Path, engine: Any = "auto") -> list[str]:
    """The files that an archive is made of."""
    stage = folder / "stage"
    stage.mkdir()
    translation.stage(model, source(model, str(checkpoint)), engine, stage)
    return sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_stage_holds_the_converted_model_or_the_weights(checkpoint: Path, tmp_path: Path, engine: str) -> None:
    files = staged(entry(tmp_path), checkpoint, tmp_path, engine)
    is_converted = engine == "auto"
    assert ("ctranslate2/model.bin" in files) is is_converted
    assert ("checkpoint/model.safetensors" in files) is not is_converted
    assert {"checkpoint/config.json", "checkpoint/vocab.json", "checkpoint/source.spm"} <= {*files}
    if is_converted:
        label = json.loads((tmp_path / "stage" / "label.json").read_text())
        assert label == {"engine": "ctranslate2", "precision": "int8"}


def test_stage_of_a_family_that_ctranslate2_lacks_keeps_its_weights_and_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tiny_seq2seq.seamless(tmp_path / "seamless")
    capsys.readouterr()
    files = staged(entry(tmp_path), checkpoint, tmp_path)
    assert "checkpoint/model.safetensors" in files and "label.json" not in files
    assert not any(name.startswith("ctranslate2/") for name in files)
    assert "torch" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("generation_config.json", ("encoder_no_repeat_ngram_size", 3), "its generation_config.json has encoder_no_"),
        ("config.json", ("share_encoder_decoder_embeddings", False), "it has a vocabulary for each language"),
    ],
)
def test_stage_of_what_ctranslate2_cannot_follow_is_torchs_and_stderr_says_why(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    name: str,
    change: tuple[str, Any],
    reason: str,
) -> None:
    copy = tmp_path / "checkpoint"
    copy.mkdir()
    for path in checkpoint.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / name).write_text(json.dumps({**json.loads((copy / name).read_text()), change[0]: change[1]}))
    assert "checkpoint/model.safetensors" in staged(entry(tmp_path), copy, tmp_path)
    assert f"tiny: torch runs it, not CTranslate2: {reason}" in capsys.readouterr().err


def test_archive_says_how_near_its_answers_are_and_min_chrf_refuses_what_is_farther(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = entry(tmp_path, SENTENCES)
    recipe = Recipe(tiny, str(checkpoint), export_path=tmp_path / "store")
    archive = recipe.build()
    report(archive, 1.0)
    chrf = archive.label["chrf"]
    assert archive.label == {"engine": "ctranslate2", "precision": "int8", "chrf": chrf, "samples": len(SENTENCES)}
    assert 0 < float(chrf) <= 100
    assert f"engine ctranslate2, precision int8, chrf {chrf}, samples {len(SENTENCES)}" in capsys.readouterr().out
    found = recipe.find()
    assert found is not None
    assert label_of(archive.path) == archive.label == found.label
    with zipfile.ZipFile(archive.path) as files:
        assert "label.json" not in files.namelist()
        files.extractall(tmp_path / "unpacked")
    assert check(tmp_path / "unpacked") is not None
    strict = Recipe(tiny, str(checkpoint), export_path=tmp_path / "store", min_chrf=100.1)
    for refused in (strict.build, strict.find):
        with pytest.raises(InvalidConfig, match=f"tiny: chrF {chrf} against .* is less than --min-chrf 100.1"):
            refused()
    lenient = Recipe(tiny, str(checkpoint), export_path=tmp_path / "store", min_chrf=float(chrf))
    assert lenient.build().label == archive.label


def test_min_chrf_without_samples_or_a_conversion_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    recipe = Recipe(entry(tmp_path), str(checkpoint), "torch", export_path=tmp_path / "store", min_chrf=90)
    with pytest.raises(InvalidConfig, match="tiny: --min-chrf 90: nothing was measured"):
        recipe.build()


def test_similarity_of_the_same_model_in_fp32_is_whole(checkpoint: Path, tmp_path: Path) -> None:
    staged(entry(tmp_path, precision="fp32"), checkpoint, tmp_path)
    config = TranslationConfig(precision="fp32", threads=1, max_new_tokens=12)
    assert similarity(tmp_path / "stage", checkpoint, config, SENTENCES) == 100
    with pytest.raises(InvalidConfig, match="empty or too long"):
        answers(tmp_path / "stage", config, ["word " * 500])


def test_export_is_made_anew_for_another_precision_or_other_samples_alone(checkpoint: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[str], dict[str, Any]]] = [
        (["One."], {}),
        (["One."], {"max_items": 7}),
        (["Two."], {}),
        (["One."], {"precision": "fp32"}),
    ]
    prints = []
    for number, (samples, settings) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        tiny = entry(folder, samples, **settings)
        prints.append(export_fingerprint(tiny, task_of(tiny), source(tiny, str(checkpoint)), "auto"))
    assert prints[0] == prints[1]
    assert len({*prints}) == 3


def test_example_has_samples_of_its_own() -> None:
    samples = read_samples(model("translation").folder)
    assert 20 <= len(samples) == len({*samples})
    assert not any(line.startswith("#") for line in samples)


# Beside a checkout on the development machines only.
REAL = ROOT.parent / "shared" / "models" / "opus-mt-en-fr"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real weights are not there")
def test_real_model_in_int8_answers_much_as_in_fp32_and_in_fp32_as_transformers(tmp_path: Path) -> None:
    texts = [line for line in (ROOT / "tests" / "sentences_en.txt").read_text().splitlines() if line[0] != "#"]
    assert len(texts) == 200
    fp32 = TranslationConfig(precision="fp32", max_new_tokens=256)
    found = {}
    for name, config, engine in (
        ("original", TranslationConfig(precision="fp32", engine="torch", max_new_tokens=256), "torch"),
        ("fp32", fp32, "auto"),
        ("int8", TranslationConfig(precision="int8", max_new_tokens=256), "auto"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        staged(entry(folder, precision=config.precision), REAL, folder, engine)
        found[name] = answers(folder / "stage", config, texts)
    same = sum(ours == theirs for ours, theirs in zip(found["fp32"], found["original"], strict=True))
    assert same >= 0.99 * len(texts)
    chrf = translation_chrf(found["int8"], found["original"])
    far = [text for text, *pair in zip(texts, found["int8"], found["original"], strict=True) if far_apart(*pair)]
    assert chrf >= 95, far


def translation_chrf(ours: list[str], theirs: list[str]) -> float:
    sacrebleu = pytest.importorskip("sacrebleu")
    return float(sacrebleu.corpus_chrf(ours, [theirs]).score)


def far_apart(ours: str, theirs: str) -> bool:
    return translation_chrf([ours], [theirs]) < 60
