"""Builds translation: a Hugging Face folder or hub id -> the files of an archive.

a family that CTranslate2 has  -> converted in fp32 -> its answers equal transformers' (deploy.archives.generation)
                               -> ctranslate2/ in the archive's precision, and checkpoint/ without its weights
                               -> the sentences of samples.txt, in both -> label.json: engine, precision, chrF
another, or with --engine torch -> its answers equal transformers' -> the whole checkpoint/

chrF (Popovic, WMT 2015) compares n-grams of characters; equal answers have 100, int8 against fp32 usually some 97.
"""

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sacrebleu
import transformers
from ctranslate2.converters import TransformersConverter

from deploy.archives.generation import TEXTS, find_differences
from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.sources import Source
from deploy.archives.tasks import find_named_file, load_task
from deploy.archives.tokens import check_tokenizer
from deploy.models import Engine, ModelEntry
from deploy.places import EXAMPLES
from handlers.archive_files import CHECKPOINT, LABEL
from handlers.checkpoints import load_tokenizer
from handlers.config import parse
from handlers.engines.ctranslate2 import COMPUTE_TYPES, CONVERTED, GREEDY_ONLY, read_vocabulary
from handlers.engines.decoding import counted_settings, foreign_settings, starts_with_end
from handlers.errors import InvalidConfig, reason
from handlers.pipeline.task import Task as Served
from handlers.precision.answers import run_items
from handlers.protocol.requests import Payload
from handlers.text.config import TranslationConfig
from handlers.text.detection import AUTO, DETECTOR, load_detector
from handlers.text.translators import read_generation, write_translator
from handlers.warm_up import decode_items

FACTS = {
    "settings": "text.config:TranslationConfig",
    "export_settings": ("trust_remote_code", "precision", "src_lang", "tgt_lang"),
    "named_files": ("detector",),
    "files": ("samples.txt",),
    "takes_hub_ids": True,
    "compares": False,
    "int8": "translation runs in int8 by itself: `precision` of its model-config.yaml, --min-chrf",
}

# Families that CTranslate2 runs, as `model_type` names them; NLLB's is M2M100's.
FAMILIES = frozenset({"marian", "m2m_100", "t5", "bart", "mbart", "pegasus"})

# Whether models of BART's family normalise before each layer, or after it.
NORMALISED_BEFORE = {"bart": False, "mbart": True, "pegasus": True}

SAMPLES = "samples.txt"  # sample texts, one a line, beside a model's model-config.yaml
BUILT_IN = EXAMPLES / "translation"  # the example's folder, for models without samples
MOST_SAMPLES = 4  # the most samples that are also compared with transformers' answers, if the default has no beams
BATCH = 16  # texts of a micro-batch: enough for speed, and in fp32 little memory


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the model for CTranslate2 or else the weights, the tokenizer, the configuration and the detector."""
    config = parse(TranslationConfig, model.config().get("handler"))
    if engine == "openvino":
        # optimum-intel, which exports decoders with their caches, requires transformers 5.5 or older.
        raise InvalidConfig(f"{model.name}: translation runs on CTranslate2 or torch; remove --engine, or use torch")
    if path := find_named_file(model, DETECTOR):
        shutil.copyfile(path, folder / f"{DETECTOR}{path.suffix}")
        load_detector(folder)
    texts = read_samples(model.folder)
    with open_checkpoint(model, origin, with_code=config.trust_remote_code) as source, TemporaryDirectory() as work:
        check_tokenizer(model, source, trust_remote_code=config.trust_remote_code)
        exact = Path(work)
        (exact / CHECKPOINT).symlink_to(source.resolve())
        named = None if config.src_lang == AUTO else config.src_lang  # texts of a known language need no detector
        plain = replace(config, detector=None, src_lang=named, precision="fp32")
        # Searches with beams sometimes end elsewhere, so more texts are compared if they are the default.
        asked = [*TEXTS, *((texts or read_samples(BUILT_IN)) if config.num_beams > 1 else texts[:MOST_SAMPLES])]
        cause = convert(source, config, exact / CONVERTED, None) if engine == "auto" else ""
        found: Mapping[int, str] = {}
        if cause is None:
            original = load_task("translation", exact, plain)
            found = find_differences(source, original, asked)
            if 1 in found or (found and config.num_beams > 1):
                cause = f"its answers differ, first the one to {next(iter(found.values()))[:40]!r}"
        if cause:
            print(f"{model.name}: torch runs it, not CTranslate2: {cause}", file=sys.stderr)
        pack(source, folder, with_weights=cause is not None)
        if cause is not None:
            generating = load_task("translation", exact, replace(plain, engine="torch"))
            if found := find_differences(source, generating, asked):
                raise InvalidConfig(
                    f"{model.name}: its answers differ from those of transformers' generate(), first the one to "
                    f"{next(iter(found.values()))[:40]!r}; this project cannot serve the model"
                )
            return
        _store(source, config, exact / CONVERTED, folder / CONVERTED, is_greedy_only=bool(found))
        if config.trust_remote_code or not write_translator(folder / CHECKPOINT):
            print(f"{model.name}: its tokenizer needs transformers where it is served", file=sys.stderr)
        label: dict[str, str | float] = {"engine": "ctranslate2", "precision": stored_precision(config.precision)}
        if found:
            label["beams"] = 1
        if texts:
            served = load_task("translation", folder, replace(plain, precision=config.precision))
            label |= {"chrf": round(similarity(served, original, texts), 1), "samples": len(texts)}
        (folder / LABEL).write_text(json.dumps(label))


def _store(source: Path, config: TranslationConfig, exact: Path, target: Path, *, is_greedy_only: bool) -> None:
    precision = stored_precision(config.precision)
    # fp32 keeps the checkpoint's datatype: weights of 16 bits are not better in 32, and twice as large.
    if precision == "fp32":
        shutil.copytree(exact, target)
    else:
        convert(source, config, target, COMPUTE_TYPES.get(precision, precision))
    if is_greedy_only:
        path = target / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), GREEDY_ONLY: True}))


def stored_precision(precision: str) -> str:
    return "int8" if precision == "auto" else precision


def convert(source: Path, config: TranslationConfig, target: Path, quantization: str | None) -> str | None:
    """Convert a checkpoint for CTranslate2; else return why not, empty for a family that it does not have."""
    if (hindrance := _find_hindrance(source, config)) is not None:
        return hindrance
    transformers.utils.logging.disable_progress_bar()  # its progress bar would interrupt archive.sh's lines
    converter = _Converter(str(source), trust_remote_code=config.trust_remote_code)
    try:
        converter.convert(str(target), quantization=quantization)
    except Exception as error:
        shutil.rmtree(target, ignore_errors=True)
        return f"its converter failed ({reason(error)})"
    if not _has_ids_of(source, target, config):
        shutil.rmtree(target)
        return "its vocabulary has another order than its tokenizer's"
    _name_tokens(source, target)
    return None


def _name_tokens(source: Path, target: Path) -> None:
    """Write the special tokens that only config.json has, such as mBART's first: CTranslate2 needs a text."""
    path, vocabulary = target / "config.json", read_vocabulary(target)
    model, converted = (json.loads(each.read_text(encoding="utf-8")) for each in (source / "config.json", path))
    for name in ("bos_token", "eos_token", "unk_token"):
        if converted.get(name) is None:
            converted[name] = vocabulary[model.get(f"{name}_id") or 0]
    path.write_text(json.dumps(converted, indent=2))


class _Converter(TransformersConverter):  # type: ignore[misc]
    """Reads only the folder, and only safetensors."""

    def load_model(self, model_class: Any, model_name_or_path: str, **options: Any) -> Any:
        model = model_class.from_pretrained(model_name_or_path, use_safetensors=True, local_files_only=True, **options)
        kind = model.config.model_type
        if kind in NORMALISED_BEFORE and not hasattr(model.config, "normalize_before"):
            # The converter reads these from the configuration, transformers has them in the class.
            model.config.normalize_before = NORMALISED_BEFORE[kind]
            model.config.normalize_embedding = hasattr(model.model.encoder, "layernorm_embedding")
        if kind == "t5":
            # transformers 5 ties all embeddings; the converter scales the logits if they are tied.
            model.config.tie_word_embeddings = model.config.scale_decoder_outputs
        return model

    def load_tokenizer(self, tokenizer_class: object, model_name_or_path: str, **options: object) -> Any:  # noqa: ARG002
        return load_tokenizer(Path(model_name_or_path), trust_remote_code=self._trust_remote_code)


def _find_hindrance(source: Path, config: TranslationConfig) -> str | None:
    """Return the reason why CTranslate2 cannot run a model, empty for an unknown family; None if it can."""
    model = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if model.get("model_type") not in FAMILIES:
        return ""
    if model.get("share_encoder_decoder_embeddings") is False:
        return "it has a vocabulary for each language"
    if model.get("encoder_attention_heads") != model.get("decoder_attention_heads"):
        return "its decoder has another number of attention heads than its encoder"
    generation, _ = read_generation(source, trust_remote_code=config.trust_remote_code)
    if foreign := foreign_settings(generation):
        return f"its generation_config.json has {', '.join(foreign)}"
    if starts_with_end(generation) and (counted := counted_settings(generation)):
        return f"its generation_config.json has {', '.join(counted)}, and its answers begin with the end token"
    return None


def _has_ids_of(source: Path, target: Path, config: TranslationConfig) -> bool:
    """Return whether each token has the tokenizer's number in the converted model."""
    if not (target / "shared_vocabulary.json").is_file():
        return False
    vocabulary = read_vocabulary(target)
    known = load_tokenizer(source, trust_remote_code=config.trust_remote_code).get_vocab()
    return all(vocabulary[number] == token for token, number in known.items() if number < len(vocabulary))


def read_samples(folder: Path) -> list[str]:
    """Read the sample sentences of a model, one a line; empty lines and those that begin with # are skipped."""
    path = folder / SAMPLES
    if not path.is_file():
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise InvalidConfig(f"{folder.name}: {SAMPLES}: not UTF-8; save it as UTF-8, one sentence a line") from None
    return [line for line in lines if line and not line.startswith("#")]


def similarity(served: Served, original: Served, texts: Sequence[str]) -> float:
    """Return the corpus chrF, 0..100, of a loaded archive's greedy answers against those of the model in fp32."""
    ours, theirs = translate(served, texts), translate(original, texts)
    return float(sacrebleu.CHRF().corpus_score(ours, [theirs]).score)


def translate(task: Any, texts: Sequence[str]) -> list[str]:
    """Translate texts greedily with a loaded archive, as its worker does."""
    options = {**task.sample().options, "num_beams": 1}
    items = decode_items(task, [Payload(text, options) for text in texts])
    if len(items) != len(texts):
        raise InvalidConfig(f"{SAMPLES}: a sentence is too long for this model; shorten it")
    results = run_items(task, items, lambda task, outputs, some: task.split(outputs, some), BATCH)
    return [result["translation_text"] for result in results]
