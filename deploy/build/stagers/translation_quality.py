"""How near a converted translation model's answers are to those of the model that it was made from.

    samples.txt -> the archive's model, by its handler         -> answers  -> chrF, 0..100
                -> the checkpoint, torch in fp32, by the same   -> answers /

chrF (Popovic, WMT 2015) compares n-grams of characters; equal answers have 100. Of int8 against fp32 some 97 is usual.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import sacrebleu

from deploy.build.tasks import loaded
from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.pipeline.micro_batches import micro_batches
from handlers.protocol.requests import Payload
from handlers.text.config import TranslationConfig
from handlers.text.detection import AUTO
from handlers.warm_up import decoded

# A text a line, beside a model's model-config.yaml.
SAMPLES = "samples.txt"
# Texts of a micro-batch: enough for speed, and in fp32 little memory.
BATCH = 16


def read_samples(folder: Path) -> list[str]:
    """Read the sample sentences of a model: a line each, without empty ones and those that begin with #."""
    path = folder / SAMPLES
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def similarity(staged: Path, source: Path, config: TranslationConfig, texts: Sequence[str]) -> float:
    """Compare greedy answers of a staged archive with those of its checkpoint in fp32.

    Args:
        staged: the folder of the archive's files.
        source: the checkpoint, with its weights.
        config: the archive's settings.
        texts: what both are asked.

    Returns:
        The corpus chrF of one against the other, 0..100.

    Raises:
        InvalidConfig: the model does not take one of the texts.
    """
    with TemporaryDirectory() as work:
        original = Path(work)
        (original / CHECKPOINT).symlink_to(source.resolve())
        # Both are told the language, so neither needs a detector.
        named = None if config.src_lang == AUTO else config.src_lang
        plain = replace(config, num_beams=1, detector=None, src_lang=named)
        ours = answers(staged, plain, texts)
        theirs = answers(original, replace(plain, engine="torch", precision="fp32"), texts)
    return float(sacrebleu.CHRF().corpus_score(ours, [theirs]).score)


def answers(folder: Path, config: TranslationConfig, texts: Sequence[str]) -> list[str]:
    """Ask an archive's files as its worker would, on the CPU.

    Raises:
        InvalidConfig: see `similarity`.
    """
    task = loaded("translation", folder, config)
    options = task.sample().options
    items = decoded(task, [Payload(text, options) for text in texts])
    if len(items) != len(texts):
        raise InvalidConfig(f"{SAMPLES}: a text is empty or too long for this model")
    found: dict[int, str] = {}
    for indices in micro_batches([task.cost(item) for item in items], BATCH):
        some = [items[index] for index in indices]
        results = task.split(task.forward(task.collate(some), some), some)
        found |= {index: result["translation_text"] for index, result in zip(indices, results, strict=True)}
    return [found[index] for index in range(len(texts))]
