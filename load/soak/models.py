"""The models of a soak: each task in classic and in adaptive mode, built from the examples into one model store.

examples/NAME -> a list of models of its own: NAME-classic, NAME-adaptive -> archives -> registered on one server

The weights and settings are the examples'; only the queue and the mode are set here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, model, models
from deploy.server import Server
from load.runs.served import Served

CLASSIC, ADAPTIVE = "classic", "adaptive"
MODES = {CLASSIC: (CLASSIC,), ADAPTIVE: (ADAPTIVE,), "both": (CLASSIC, ADAPTIVE)}


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how the models are registered."""

    # Requests that wait while no worker is there; one more is answered 503. Few enough for a killed worker's queue to
    # fill up, so that the soak sees that answer too.
    queue: int = 50
    # Window of an adaptive worker, requests.
    window: int = 64
    # Items of an adaptive worker's micro-batch: OpenVINO keeps memory for the largest, 2 GB for 64 images.
    batch_items: int = 16
    # ms: the target of adaptive mode. Long, since what counts is how many answers are compared, not how soon they come.
    max_latency_ms: int = 2000
    queue_timeout_ms: int = 5000
    # Seconds of warm-up at likely shapes; the archives' own 3 s are for latencies that nobody measures here.
    warm_up_s: float = 1.0
    # Folder of the exports that every build on this machine shares.
    exports: Path = ROOT / "model_store" / ".exports"


TUNING = Tuning()

# Example -> share of the requests. An image costs some ten times as much as a text, a language next to nothing.
MIX = {"sentence-embedding": 2, "mobilenet-v2": 1, "language-id": 3}


@dataclass(frozen=True, slots=True)
class Subject:
    """One model under load.

    Attributes:
        name: the registered name.
        task: name of its handler.
        mode: classic or adaptive.
        share: its requests, as a share of the sum over all subjects' shares.
    """

    name: str
    task: str
    mode: str
    share: int


def subjects(mode: str) -> list[Subject]:
    """List the models of a run, those that differ in mode alone side by side.

    Args:
        mode: one of MODES.
    """
    return [
        Subject(f"{example}-{each}", model(example).handler, each, share)
        for example, share in MIX.items()
        for each in MODES[mode]
    ]


def build(wanted: Sequence[Subject], store: Path) -> None:
    """Build the archives as folders of a model store.

    Args:
        wanted: the models.
        store: an empty folder.

    Raises:
        ArchiverFailed, WeightsUnavailable, InvalidConfig: with one line for the user.
    """
    sources = store / ".models"
    entries = {}
    for subject in wanted:
        example = model(subject.name.removesuffix(f"-{subject.mode}"))
        folder = sources / subject.name
        folder.mkdir(parents=True)
        config = configuration(example.config(), subject.mode)
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        entries[subject.name] = {
            "handler": example.handler,
            "version": example.version,
            "weights": dict(example.weights),
        }
    listed = sources / "models.yaml"
    listed.write_text(yaml.safe_dump(entries), encoding="utf-8")
    for entry in models(listed).values():
        Recipe(entry, archive_format="no-archive", export_path=store, cache_path=TUNING.exports).build()


def configuration(example: dict[str, Any], mode: str) -> dict[str, Any]:
    """Change an example's model-config.yaml to a mode, and to the soak's queue."""
    config = {**example, "jobQueueSize": TUNING.queue, "minWorkers": 1, "maxWorkers": 1}
    if mode == CLASSIC:
        return {**config, "handler": {**example["handler"], "scheduling": {"mode": CLASSIC}}}
    scheduling = {
        "mode": "adaptive",
        "max_batch_items": TUNING.batch_items,
        "max_latency_ms": TUNING.max_latency_ms,
        "queue_timeout_ms": TUNING.queue_timeout_ms,
        "warm_up_s": TUNING.warm_up_s,
    }
    return {
        **config,
        "continuousBatching": True,
        "batchSize": TUNING.window,
        "maxBatchDelay": 1,
        "handler": {**example["handler"], "scheduling": scheduling},
    }


def register(server: Server, subject: Subject) -> None:
    """Register a model and wait until its worker is ready.

    Raises:
        LoadFailed: with the worker's own words.
    """
    config = yaml.safe_load((Path(server.settings.model_store) / subject.name / "model-config.yaml").read_text())
    server.register(
        subject.name,
        subject.name,
        batch_size=config["batchSize"],
        max_batch_delay_ms=config["maxBatchDelay"],
        workers=1,
    )


def served(server: Server, subject: Subject, timeout_s: float) -> Served:
    """Address a model for questions and requests."""
    settings = server.settings
    return Served(
        subject.name,
        url=settings.inference_url,
        management_url=settings.management_url,
        metrics_url=settings.metrics_url,
        timeout_s=timeout_s,
    )
