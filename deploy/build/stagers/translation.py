"""Stages what an archive of a translation model holds, made from a Hugging Face folder or hub id.

a family that CTranslate2 has -> converted in fp32 -> its answers equal transformers' (deploy.build.generation)
                              -> ctranslate2/ in the archive's precision, and checkpoint/ without its weights
                              -> both asked the sentences of samples.txt -> label.json: engine, precision, chrF
any other, or --engine torch  -> its answers equal transformers' -> checkpoint/ as it is

chrF (Popovic, WMT 2015) compares n-grams of characters; equal answers have 100. Of int8 against fp32 some 97 is usual.
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

from deploy.build.generation import TEXTS, find_differences
from deploy.build.hub import open_checkpoint, pack
from deploy.build.sources import Source
from deploy.build.tasks import find_named_file, load_task
from deploy.models import MODEL_LIST, Engine, ModelEntry
from handlers.archive_files import CHECKPOINT, LABEL
from handlers.config import parse
from handlers.engines.ctranslate2 import COMPUTE_TYPES, CONVERTED, GREEDY_ONLY, read_vocabulary
from handlers.engines.decoding import foreign_settings
from handlers.engines.seq2seq import load_tokenizer, read_generation
from handlers.errors import InvalidConfig
from handlers.pipeline.micro_batches import plan_micro_batches
from handlers.protocol.requests import Payload
from handlers.text.config import TranslationConfig
from handlers.text.detection import AUTO, DETECTOR, load_detector
from handlers.warm_up import decode_items

# Families that CTranslate2 runs, as `model_type` names them; NLLB's is M2M100's.
FAMILIES = frozenset({"marian", "m2m_100", "t5", "bart", "mbart", "pegasus"})

# Whether BART's kin normalise before each layer, not after it.
NORMALISED_BEFORE = {"bart": False, "mbart": True, "pegasus": True}

# A text a line, beside a model's model-config.yaml.
SAMPLES = "samples.txt"
# Those of the example, for models that have none.
BUILT_IN = MODEL_LIST.parent / "translation"
# The most of them that are also compared with transformers' answers, text by text, if a request asks for no beams.
MOST_SAMPLES = 4
# Texts of a micro-batch: enough for speed, and in fp32 little memory.
BATCH = 16


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the converted model where CTranslate2 has its family, else the weights; and tokenizer and configuration.

    The detector of languages that the configuration names goes beside it.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the engine is OpenVINO.
    """
    config = parse(TranslationConfig, model.config().get("handler"))
    if engine == "openvino":
        # What exports decoders with their caches, optimum-intel, holds transformers back at 5.5.
        raise InvalidConfig(f"{model.name}: translation runs on CTranslate2 or torch; give --engine torch, or none")
    if path := find_named_file(model, DETECTOR):
        shutil.copyfile(path, folder / f"{DETECTOR}{path.suffix}")
        load_detector(folder)
    texts = read_samples(model.folder)
    with open_checkpoint(model, origin, with_code=config.trust_remote_code) as source, TemporaryDirectory() as work:
        exact = Path(work)
        (exact / CHECKPOINT).symlink_to(source.resolve())
        # Both are told the language, so neither needs a detector.
        named = None if config.src_lang == AUTO else config.src_lang
        plain = replace(config, detector=None, src_lang=named, precision="fp32")
        # Searches with beams end at other places now and then, so one that every request gets is compared more often.
        asked = (
            [*TEXTS, *(texts or read_samples(BUILT_IN))] if config.num_beams > 1 else [*TEXTS, *texts[:MOST_SAMPLES]]
        )
        reason = convert(source, config, exact / CONVERTED, None) if engine == "auto" else ""
        found: Mapping[int, str] = {}
        if reason is None:
            found = find_differences(source, exact, plain, asked)
            if 1 in found or (found and config.num_beams > 1):
                reason = f"its answers differ, first that to {next(iter(found.values()))[:40]!r}"
        if reason:
            print(f"{model.name}: torch runs it, not CTranslate2: {reason}", file=sys.stderr)
        pack(source, folder, with_weights=reason is not None)
        if reason is not None:
            if found := find_differences(source, exact, replace(plain, engine="torch"), asked):
                raise InvalidConfig(
                    f"{model.name}: its answers differ from those of transformers' generate(), first that to "
                    f"{next(iter(found.values()))[:40]!r}; this project cannot serve the model"
                )
            return
        _store(source, config, exact / CONVERTED, folder / CONVERTED, is_greedy_only=bool(found))
        label: dict[str, str | float] = {"engine": "ctranslate2", "precision": stored_precision(config.precision)}
        if found:
            label["beams"] = 1
        if texts:
            served = replace(plain, precision=config.precision)
            label |= {"chrf": round(similarity(folder, exact, served, texts), 1), "samples": len(texts)}
        (folder / LABEL).write_text(json.dumps(label))


def _store(source: Path, config: TranslationConfig, exact: Path, target: Path, *, is_greedy_only: bool) -> None:
    """Write the converted model in the archive's precision."""
    precision = stored_precision(config.precision)
    # fp32 keeps what the checkpoint has: weights of 16 bits are no better in 32, and twice as large.
    if precision == "fp32":
        shutil.copytree(exact, target)
    else:
        convert(source, config, target, COMPUTE_TYPES.get(precision, precision))
    if is_greedy_only:
        path = target / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), GREEDY_ONLY: True}))


def stored_precision(precision: str) -> str:
    """The precision that weights are stored in: that of the setting, and int8 where it leaves the choice."""
    return "int8" if precision == "auto" else precision


def convert(source: Path, config: TranslationConfig, target: Path, quantization: str | None) -> str | None:
    """Convert a checkpoint for CTranslate2.

    Args:
        source: the checkpoint.
        config: the archive's settings.
        target: the folder to write; it does not exist if CTranslate2 cannot run the model.
        quantization: CTranslate2's name of the precision; None for the checkpoint's own.

    Returns:
        The reason why CTranslate2 cannot run it, empty for a family that it does not have; None if it was converted.
    """
    if (reason := _hindrance(source, config)) is not None:
        return reason
    # Its bar would stand between archive.sh's lines.
    transformers.utils.logging.disable_progress_bar()
    converter = _Converter(str(source), trust_remote_code=config.trust_remote_code)
    try:
        converter.convert(str(target), quantization=quantization)
    except Exception as error:
        shutil.rmtree(target, ignore_errors=True)
        return f"its converter failed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    if not _has_ids_of(source, target, config):
        shutil.rmtree(target)
        return "its vocabulary is not in the order of its tokenizer's"
    _name_tokens(source, target)
    return None


def _name_tokens(source: Path, target: Path) -> None:
    """Name the special tokens that a tokenizer lacks and config.json has, mBART's first: CTranslate2 needs a text."""
    path, vocabulary = target / "config.json", read_vocabulary(target)
    model, converted = (json.loads(each.read_text(encoding="utf-8")) for each in (source / "config.json", path))
    for name in ("bos_token", "eos_token", "unk_token"):
        if converted.get(name) is None:
            converted[name] = vocabulary[model.get(f"{name}_id") or 0]
    path.write_text(json.dumps(converted, indent=2))


class _Converter(TransformersConverter):  # type: ignore[misc]
    """Reads a folder and nothing else, and of weights only safetensors."""

    def load_model(self, model_class: Any, model_name_or_path: str, **options: Any) -> Any:
        model = model_class.from_pretrained(model_name_or_path, use_safetensors=True, local_files_only=True, **options)
        kind = model.config.model_type
        if kind in NORMALISED_BEFORE and not hasattr(model.config, "normalize_before"):
            # The converter asks the configuration what transformers has in the class.
            model.config.normalize_before = NORMALISED_BEFORE[kind]
            model.config.normalize_embedding = hasattr(model.model.encoder, "layernorm_embedding")
        if kind == "t5":
            # transformers 5 ties all of them; the converter scales the logits of those that it takes for tied.
            model.config.tie_word_embeddings = model.config.scale_decoder_outputs
        return model

    def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **options: Any) -> Any:  # noqa: ARG002
        return load_tokenizer(Path(model_name_or_path), trust_remote_code=self._trust_remote_code)


def _hindrance(source: Path, config: TranslationConfig) -> str | None:
    """Say why CTranslate2 cannot run a model; an empty text where its family says it all, None where it can."""
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
    return None


def _has_ids_of(source: Path, target: Path, config: TranslationConfig) -> bool:
    """Whether a token has the same number in the converted model as in the tokenizer."""
    if not (target / "shared_vocabulary.json").is_file():
        return False
    vocabulary = read_vocabulary(target)
    known = load_tokenizer(source, trust_remote_code=config.trust_remote_code).get_vocab()
    return all(vocabulary[number] == token for token, number in known.items() if number < len(vocabulary))


def read_samples(folder: Path) -> list[str]:
    """Read the sample sentences of a model: a line each, without empty ones and those that begin with #."""
    path = folder / SAMPLES
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def similarity(staged: Path, exact: Path, config: TranslationConfig, texts: Sequence[str]) -> float:
    """Compare greedy answers of a staged archive with those of the same model in fp32, which equal transformers'.

    Args:
        staged: the folder of the archive's files.
        exact: those of the model in fp32.
        config: the archive's settings, with a language instead of a detector.
        texts: what both are asked.

    Returns:
        The corpus chrF of one against the other, 0..100.

    Raises:
        InvalidConfig: the model does not take one of the texts.
    """
    greedy = replace(config, num_beams=1)
    ours, theirs = translate(staged, greedy, texts), translate(exact, replace(greedy, precision="fp32"), texts)
    return float(sacrebleu.CHRF().corpus_score(ours, [theirs]).score)


def translate(folder: Path, config: TranslationConfig, texts: Sequence[str]) -> list[str]:
    """Ask an archive's files as its worker would, on the CPU.

    Raises:
        InvalidConfig: see `similarity`.
    """
    task = load_task("translation", folder, config)
    options = task.sample().options
    items = decode_items(task, [Payload(text, options) for text in texts])
    if len(items) != len(texts):
        raise InvalidConfig(f"{SAMPLES}: a text is empty or too long for this model")
    found: dict[int, str] = {}
    for indices in plan_micro_batches([task.cost(item) for item in items], BATCH):
        some = [items[index] for index in indices]
        results = task.split(task.forward(task.collate(some), some), some)
        found |= {index: result["translation_text"] for index, result in zip(indices, results, strict=True)}
    return [found[index] for index in range(len(texts))]
