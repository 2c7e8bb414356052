"""int8 as archive.sh makes it with NNCF, of trained models, is as near as its proof says.

NNCF's environment is built where it is not there; a build with it takes half a minute.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import torchvision
import transformers
import yaml
from numpy.typing import NDArray

from deploy.archives.__main__ import main
from deploy.archives.exports import Exports
from deploy.archives.fingerprint import read_build
from deploy.archives.sources import source
from deploy.archives.staging import plan_comparisons, stage
from deploy.archives.tasks import load_task
from deploy.archives.tasks.translation import translate
from deploy.models import ROOT, ModelEntry, model
from handlers.archive_files import GRAPH, INT8_GRAPH, LABEL, load_proofs
from handlers.config import parse
from handlers.engines.openvino import OpenVinoEngine
from handlers.precision.comparisons import LEAD
from handlers.probabilities import softmax
from handlers.proofs import read_proofs
from handlers.text.config import TranslationConfig
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD, ImageClassificationConfig
from handlers.vision.images import decode_image
from handlers.vision.pixel_classifier import PixelClassifier
from handlers.vision.preprocessing import Preprocessing, to_levels
from load.bench.peer_process import build_environment
from load.bench.texts import CHECKPOINT, NO_CHECKPOINT
from tests import held_out, trained

NAME, CROPS = "mobilenet-int8", 60
MOBILENET = ROOT / "examples" / "mobilenet-v2"
CONFIG = ImageClassificationConfig(arch="mobilenet_v2")
SEEN = Preprocessing(256, (224, 224), "bilinear", to_levels(IMAGENET_MEAN), to_levels(IMAGENET_STD), is_rounded=True)


@pytest.fixture(scope="module")
def nncf() -> None:
    """NNCF's environment; done in a second where an earlier run has built it."""
    build_environment("int8")


@pytest.fixture(scope="module")
def built(nncf: None, model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """mobilenet-v2 with an int8 graph as a folder of the model store, which answers with every class."""
    folder = tmp_path_factory.mktemp("int8")
    calibration, validation = held_out.crops(CROPS).write(folder, ".jpg")
    entry = {"task": "image_classification", "version": "1.0", "weights": model("mobilenet-v2").weights}
    (folder / "models.yaml").write_text(yaml.safe_dump({NAME: entry}))
    (folder / NAME).mkdir()
    settings = yaml.safe_load((MOBILENET / "model-config.yaml").read_text())
    settings["handler"] |= {"precision": "int8", "top_k": 1000}
    (folder / NAME / "model-config.yaml").write_text(yaml.safe_dump(settings))
    places = ["--models", folder / "models.yaml", "--export-path", model_store, "--archive-format", "no-archive"]
    inputs = ["--calibrate", calibration, "--validate", validation, "--min-agreement", "0.95"]
    assert main([NAME, "--precision", "int8", *map(str, [*places, *inputs])]) == 0
    yield model_store / NAME
    shutil.rmtree(model_store / NAME)


def test_int8_is_as_near_to_torch_in_fp32_as_its_proof_says(built: Path) -> None:
    proof = load_proofs(built)["int8"]
    assert (proof.measure, proof.holds) == ("top-1", True)
    bodies = held_out.crops(CROPS).held_out
    pixels = np.stack([decode_image(body, CONFIG, SEEN)[0] for body in bodies])
    classifier = torchvision.models.get_model("mobilenet_v2", weights=None)
    classifier.load_state_dict(trained.mobilenet_v2())
    module = PixelClassifier(classifier, SEEN).eval()
    with torch.inference_mode():
        exact = softmax(module(torch.from_numpy(pixels)).numpy())
    ranked = np.sort(exact, axis=1)
    is_clear = ranked[:, -1] - ranked[:, -2] >= LEAD
    # OpenVINO's fp32 and torch's differ by rounding: one crop may be as near the limit as that.
    assert int(is_clear.sum()) == pytest.approx(proof.samples, abs=1)

    def distance(precision: Any) -> tuple[float, float]:
        logits = OpenVinoEngine(built / GRAPH, precision=precision).run({"pixels": pixels})["logits"]
        found: NDArray[np.float32] = softmax(logits)
        same = (exact.argmax(axis=1) == found.argmax(axis=1))[is_clear]
        return float(same.mean()), float(np.abs(exact - found).max())

    agreement, change = distance("int8")
    assert agreement == pytest.approx(proof.agreement, abs=1.5 / proof.samples)
    assert change == pytest.approx(proof.largest_change, abs=0.005)
    # And it is int8: fp32 is two orders nearer.
    assert distance("fp32")[1] < change / 10


@pytest.mark.usefixtures("nncf")
def test_encoder_in_int8_is_proven_by_its_vectors(tmp_path: Path) -> None:
    for name, lines in zip(("calibration", "validation"), held_out.sentences(), strict=True):
        (tmp_path / f"{name}.txt").write_bytes(b"\n".join(lines))
    inputs = ["--calibrate", str(tmp_path / "calibration.txt"), "--validate", str(tmp_path / "validation.txt")]
    places = ["--export-path", str(tmp_path / "store"), "--engine", "openvino"]
    # The task's own bar, on texts that are padded to each other's lengths.
    assert main(["sentence-embedding", *places, "--precision", "int8", *inputs]) == 0
    build = read_build(tmp_path / "store" / "sentence-embedding.mar")
    assert build is not None
    proof = read_proofs(build.proofs)["int8"]
    assert (proof.measure, proof.samples) == ("vectors", 100)
    # It is int8, and not what bf16 or fp32 would be.
    assert proof.agreement < 0.9999
    shutil.unpack_archive(tmp_path / "store" / "sentence-embedding.mar", tmp_path / "unpacked", "zip")
    assert (tmp_path / "unpacked" / INT8_GRAPH).is_file()


@pytest.mark.filterwarnings("ignore:Recommended:UserWarning")  # sacremoses is not installed
@pytest.mark.skipif(not CHECKPOINT.is_dir(), reason=NO_CHECKPOINT)
def test_trained_translation_in_int8_is_near_generate_in_fp32(tmp_path: Path) -> None:
    texts = [line.decode() for line in held_out.sentences().held_out][:48]
    (own := tmp_path / "opus").mkdir()
    (own / "model-config.yaml").write_text("handler: {precision: int8}")
    (own / "samples.txt").write_text("\n".join(texts))
    entry = ModelEntry("opus", "translation", "1", own)
    (staged := tmp_path / "staged").mkdir()
    exports = Exports(tmp_path / "exports")
    stage(entry, source(entry, str(CHECKPOINT)), "auto", plan_comparisons(), exports=exports, folder=staged)
    label = json.loads((staged / LABEL).read_text())
    assert (label["engine"], label["precision"], label["samples"]) == ("ctranslate2", "int8", len(texts))
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    network: Any = transformers.MarianMTModel.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    with torch.inference_mode():
        answers = [network.generate(**tokenizer([text], return_tensors="pt"), num_beams=1) for text in texts]
    exact = [tokenizer.decode(answer[0], skip_special_tokens=True) for answer in answers]
    ours = translate(load_task("translation", staged, parse(TranslationConfig, entry.settings())), texts)
    found = sacrebleu.CHRF().corpus_score(ours, [exact]).score
    # The archive's own figure, whose fp32 is CTranslate2's; and int8 is not fp32.
    assert found == pytest.approx(label["chrf"], abs=1.0) and 95 <= found < 100
