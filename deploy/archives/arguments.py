"""The options of `archive`, checked."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

from deploy.archives.archive import SUFFIXES, Recipe
from deploy.archives.options import OPTIONS, REMEMBERED, name_place, recall
from deploy.command import CommandParser, number
from deploy.models import MODEL_LIST, Engine, ModelEntry
from deploy.places import ARCHIVE, HOME, MINE, OWN_LIST, ROOT, STORE
from deploy.rooms import ROOMS, open_room

PRECISION = open_room("precision")  # deploy.archives.precision.request; None without comparisons

CHECK = "build nothing; list the archives with handlers of another version, and return 1 if there are any"
KEEP = "after a build, keep the newest N versions and those that nodes serve (default: all)"
EXAMPLES = (
    "torchserve-batching archive mobilenet-v2",
    "torchserve-batching archive flowers --models my/models.yaml --weights my/checkpoint.pt --engine openvino",
)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; argparse ends the process if it is wrong."""
    parser = CommandParser(
        prog=ARCHIVE,
        usage=f"{ARCHIVE} (NAME... | --all) [OPTION...]",
        description="Build TorchServe archives from the models of a list: docs/how-to/bring-a-model.md.",
        examples=EXAMPLES,
    )
    group = parser.add_argument_group("models")
    group.add_argument("names", nargs="*", metavar="NAME", help="build this model of the list")
    group.add_argument("--all", action="store_true", help="build every model of the list")
    words = "read this model list (default: models.yaml of the current folder, or else examples/models.yaml)"
    group.add_argument("--models", type=Path, metavar="FILE", help=words)
    if "migrate" in ROOMS:
        words = "move an archive of stock TorchServe to my/models.yaml and build it, without running its code"
        group.add_argument("--from", dest="source", type=Path, metavar="OLD", help=words)
        words = "serve the handler of --from unchanged: its code runs in the worker"
        group.add_argument("--stock", action="store_true", help=words)
    words = "use these weights: a file, a folder, a Hugging Face id, or random (default: the list's)"
    group.add_argument("--weights", metavar="PATH|HUB_ID|random", help=words)
    words = "pack the model for one engine (default: auto, for OpenVINO and for PyTorch)"
    group.add_argument("--engine", choices=get_args(Engine), default="auto", help=words)

    group = parser.add_argument_group(
        "output", "CACHE_DIR names a folder for exported graphs (default: model_store/.exports)."
    )
    words = "write archives into this folder (default: model_store)"
    group.add_argument("--export-path", type=Path, default=STORE, metavar="FOLDER", help=words)
    words = "write this format; no-archive is a folder, for development (default: zip-store, uncompressed)"
    group.add_argument("--archive-format", choices=list(SUFFIXES), default="zip-store", help=words)
    group.add_argument("--check", action="store_true", help=CHECK)
    group.add_argument("--keep", type=number(int, 1), metavar="N", help=KEEP)
    group.add_argument("--force", action="store_true", help="build archives that are up to date, too")
    group.add_argument("--recall", action="store_true", help=argparse.SUPPRESS)  # for `serve`
    group.add_argument("--debug", action="store_true", help="print the traceback of an error")

    group = parser.add_argument_group("precision", "Each build prints how near the answers are to the model's own.")
    if PRECISION:
        PRECISION.add_options(group)
    words = "reject a converted translation model whose chrF against fp32, 0..100, is less (default: any)"
    group.add_argument("--min-chrf", type=float, metavar="N", help=words)

    parser.set_defaults(source=None, stock=False)
    options = parser.parse_args(arguments)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Complete the options; argparse ends the process if two contradict each other."""
    if options.models is None:
        # In a folder without a list, the examples are built only by their names.
        listed = OWN_LIST if options.all and HOME != ROOT else MODEL_LIST
        options.models = MINE if options.source else listed
    if options.check:
        if options.names or options.all or options.source:
            parser.error("--check reads the archives of --export-path: name no models")
    elif options.source is not None:
        if options.all or len(options.names) > 1:
            parser.error("--from takes one archive and at most one name")
    elif options.stock:
        parser.error("--stock belongs to --from: use both")
    elif bool(options.names) == options.all:
        parser.error("name models or use --all, and not both")
    if options.weights not in (None, "random") and (options.all or len(options.names) > 1):
        parser.error("--weights PATH belongs to one model: name only that model")
    if PRECISION:
        PRECISION.check_options(parser, options)


def make_recipe(entry: ModelEntry, options: argparse.Namespace, cache_path: Path | None) -> Recipe:
    """Return the recipe of an archive from the options of a command line."""
    values = [getattr(options, name, None) for name in REMEMBERED]
    given = {option: str(value) for option, value in zip(OPTIONS, values, strict=True) if value not in (None, "auto")}
    words = [word for option, value in given.items() for word in (option, name_place(option, value))]
    return Recipe(
        entry,
        options.weights,
        options.engine,
        options.archive_format,
        options.export_path.resolve(),
        cache_path,
        options.min_chrf,
        PRECISION.read_options(options) if PRECISION else None,
        tuple(words),
    )


def recall_recipe(entry: ModelEntry, cache_path: Path | None) -> Recipe:
    """Return the recipe of a model with the options of its last build."""
    words, lost = recall(entry.name)
    return replace(make_recipe(entry, parse_arguments([entry.name, *words]), cache_path), lost=lost)
