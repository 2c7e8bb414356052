"""Right answers of trained weights on data that registry packages carry, ours against the library's in fp32.

photographs of ImageNet (foolbox) -> top-1; pairs of words that people rated (gensim) -> rank correlation; messages of
programs and their translations by people (Django) -> chrF
"""

import gettext
import io
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import orjson
import torch
from numpy.typing import NDArray
from PIL import Image

from deploy.archives.precision.request import PrecisionRequest
from deploy.archives.sources import fetch, source
from deploy.archives.weights import load_weights
from deploy.models import model
from handlers.archive_files import CHECKPOINT
from load import LoadError
from load.bench import archives, texts
from load.bench.archives import ADAPTIVE
from load.bench.hosts import serve_one
from load.bench.int8 import INT8, write_calibration
from load.bench.rounds import Bench, Row, redirect_output
from load.inputs import Inputs
from torchserve_client.payloads import Json
from torchserve_client.transport import Request, Transport

IMAGES, ARCH = "mobilenet-v2", "mobilenet_v2"
PHOTOGRAPHS, PAIRS, MESSAGES = "foolbox==3.3.4", "gensim==4.4.0", "Django==5.2.19"
RATED = ("wordsim353.tsv", "simlex999.txt")
FEWEST_WORDS = 4  # of a message: shorter ones have many translations
BATCH, CLIENTS = 16, 8
PATIENCE_S = 120.0  # of a response
# Whatever a program fills in, and marks of HTML, are no language.
FILLED_IN = re.compile(r"[%{}<>&\n]")


def ask(folder: Path, bodies: Sequence[bytes], kind: str) -> list[Json]:
    """Return the answers of one process that serves an archive."""
    inputs = Inputs.of(bodies, kind)
    with serve_one(folder, inputs) as running, closing(Transport(connections=CLIENTS)) as transport:

        def send(body: bytes) -> Any:
            response = transport.send(Request("POST", running.url, body, {"Content-Type": kind}), PATIENCE_S)
            if not response.is_ok:
                raise LoadError(f"{folder.name}: {response.status} {response.body[:200]!r}")
            return orjson.loads(response.body)

        with ThreadPoolExecutor(CLIENTS) as pool:
            return [*pool.map(send, bodies)]


def precisions(built: Path, **settings: float) -> Iterator[tuple[str, Path]]:
    """Yield the precisions of this processor and copies of an archive that use them."""
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    for precision in ("fp32", *(("bf16",) if has_bf16 else ()), INT8):
        name = archives.copy_with(built, f"{built.name}-{precision}", ADAPTIVE, precision=precision, **settings)
        yield precision, built.with_name(name)


def measure(bench: Bench) -> Iterator[Row]:
    images, sentences = write_calibration(bench.work)
    yield from _photographs(bench, PrecisionRequest(INT8, images, least=0.0))
    yield from _pairs(bench, PrecisionRequest(INT8, sentences, least=0.0))
    if texts.CHECKPOINT.is_dir():
        yield from _messages(bench)
    else:
        bench.remark(texts.NO_CHECKPOINT)


def _photographs(bench: Bench, request: PrecisionRequest) -> Iterator[Row]:
    import torchvision  # noqa: PLC0415

    entry = model(IMAGES)
    paths = sorted((fetch(entry, PHOTOGRAPHS) / "foolbox" / "data").glob("imagenet_*.jpg"))
    labels, bodies = [int(path.stem.rpartition("_")[2]) for path in paths], [path.read_bytes() for path in paths]
    network = torchvision.models.get_model(ARCH, weights=None).eval()
    network.load_state_dict(load_weights(entry, ARCH, source(entry, None)))
    weights = torchvision.models.get_model_weights(ARCH).IMAGENET1K_V1
    rows = [weights.transforms()(Image.open(io.BytesIO(body)).convert("RGB")) for body in bodies]
    with torch.inference_mode():
        theirs = network(torch.stack(rows)).argmax(1).tolist()

    def right(found: Sequence[object], wanted: Sequence[object]) -> float:
        return 100.0 * sum(bool(one == other) for one, other in zip(found, wanted, strict=True)) / len(wanted)

    names = [weights.meta["categories"][label] for label in labels]
    for precision, folder in precisions(archives.build(bench, IMAGES, bench.work, request), top_k=1):
        ours = [next(iter(each)) for each in ask(folder, bodies, "image/jpeg")]
        what = f"{IMAGES}, {precision}, {len(bodies)} photographs, top-1 in %"
        yield Row(what, [right(ours, names)], "torchvision", [right(theirs, labels)])


def _pairs(bench: Bench, request: PrecisionRequest) -> Iterator[Row]:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    folder = fetch(model(texts.EMBEDDING), PAIRS) / "gensim" / "test" / "test_data"
    built = archives.build(bench, texts.EMBEDDING, bench.work, request)
    encoder = SentenceTransformer(str(built / CHECKPOINT), device="cpu")
    found = dict(precisions(built))
    for name in RATED:
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        rated = [line.split("\t") for line in lines if line and not line.startswith("#")]
        words = [*dict.fromkeys(word for *pair, _ in rated for word in pair)]
        order = {word: at for at, word in enumerate(words)}

        def correlate(vectors: object, rated: list[list[str]] = rated, order: dict[str, int] = order) -> float:
            unit = np.asarray(vectors, np.float64)
            unit /= np.linalg.norm(unit, axis=1, keepdims=True)
            cosines = [unit[order[one]] @ unit[order[other]] for one, other, _ in rated]
            return 100 * float(np.corrcoef(_ranks(cosines), _ranks([float(rating) for *_, rating in rated]))[0, 1])

        theirs = correlate(encoder.encode(words))
        for precision, archive in found.items():
            ours = ask(archive, [orjson.dumps({"text": word}) for word in words], "application/json")
            what = f"{texts.EMBEDDING}, {precision}, {len(rated)} pairs of {name}, rank correlation in %"
            yield Row(what, [correlate(ours)], "sentence-transformers", [theirs])


def _ranks(values: "Sequence[float] | NDArray[np.float64]") -> NDArray[np.float64]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]


def _translator(work: Path, precision: str) -> Path:
    """Build an archive with weights in a precision: a setting of a built one changes only the arithmetic."""
    entry = model(texts.TRANSLATION)
    entry = replace(entry, name=f"{entry.name}-{precision}", folder=work / precision)
    shutil.copytree(model(texts.TRANSLATION).folder, entry.folder)
    config = entry.config()
    content = {**config, "handler": {**config["handler"], "precision": precision}}
    entry.config_path.write_text(orjson.dumps(content).decode(), encoding="utf-8")  # JSON is YAML
    with redirect_output():
        return archives.recipe(entry, work, str(texts.CHECKPOINT)).build().path


def _messages(bench: Bench) -> Iterator[Row]:
    import sacrebleu  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    folder = fetch(model(texts.TRANSLATION), MESSAGES) / "django"
    catalogs = [gettext.GNUTranslations(path.open("rb")) for path in sorted(folder.rglob("fr/LC_MESSAGES/*.mo"))]
    pairs = {key: text for each in catalogs for key, text in vars(each)["_catalog"].items() if isinstance(key, str)}
    kept = {key: text for key, text in pairs.items() if len(key.split()) >= FEWEST_WORDS and not FILLED_IN.search(key)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(texts.CHECKPOINT)
    network = transformers.MarianMTModel.from_pretrained(texts.CHECKPOINT, dtype=torch.float32).eval()
    english, theirs = [*kept], list[str]()
    for at in range(0, len(english), BATCH):
        rows = tokenizer(english[at : at + BATCH], return_tensors="pt", padding=True)
        with torch.inference_mode():
            theirs += tokenizer.batch_decode(network.generate(**rows, num_beams=1), skip_special_tokens=True)
    score = partial(sacrebleu.CHRF().corpus_score, references=[[*kept.values()]])
    for precision in ("fp32", INT8):
        answers = ask(
            _translator(bench.work, precision), [orjson.dumps({"text": each}) for each in english], "application/json"
        )
        ours = [each["translation_text"] for each in answers]
        what = f"opus-mt-en-fr, {precision}, {len(kept)} messages, chrF"
        yield Row(what, [score(ours).score], "transformers", [score(theirs).score])
