"""The options of `archive`, checked."""

import argparse
from pathlib import Path
from typing import get_args

from deploy.archives.archive import SUFFIXES, Recipe
from deploy.archives.fingerprint import read_build
from deploy.command import CommandParser, number
from deploy.models import MODEL_LIST, Engine, ModelEntry
from deploy.places import ARCHIVE, HOME, MINE, OWN_LIST, ROOT, STORE
from deploy.rooms import ROOMS, open_room
from handlers.errors import InvalidConfig

PRECISION = open_room("precision")  # deploy.archives.precision.request; None without comparisons

CHECK = "build nothing; list the archives with handlers of another version, and return 1 if there are any"
KEEP = "after a build, keep the newest N versions and those that nodes serve (default: all)"
# The options that a later build by `serve` or `start` has, too; those of PATHS name a file or folder.
REMEMBERED = ("weights", "engine", "precision", "calibrate", "validate", "min_agreement", "min_chrf")
PATHS = ("--weights", "--calibrate", "--validate")
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
    words = "refuse a converted translation model whose chrF against fp32, 0..100, is less (default: any)"
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
    given = {name: value for name in REMEMBERED if (value := getattr(options, name, None)) not in (None, "auto")}
    words = [word for name, value in given.items() for word in _shorten(f"--{name.replace('_', '-')}", str(value))]
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


def _shorten(option: str, value: str) -> tuple[str, str]:
    """Return an option for build.json: a path below HOME from there, and of another only its name, since both ship."""
    if option not in PATHS or value == "random" or not Path(value).exists():
        return option, value
    path = Path(value).resolve()
    return option, f"./{path.relative_to(HOME)}" if path.is_relative_to(HOME) else f"/{path.name}"


def recall(name: str) -> list[str]:
    """Return and print the options with which a model's archive was built; InvalidConfig if a path is gone."""
    build = read_build(STORE / f"{name}.mar")
    words = [] if build is None else [*build.options]
    for index, option in enumerate(words[:-1]):
        value = words[index + 1]
        # A Hugging Face id is neither absolute nor begins with a point.
        if option not in PATHS or value == "random" or (option == "--weights" and not value.startswith(("/", "./"))):
            continue
        if Path(value).is_absolute():
            fault = f"is outside {HOME}: give it again to {ARCHIVE} {name}, which without it builds without"
        elif not (path := HOME / value).exists():
            fault = f"is missing; {ARCHIVE} {name} builds it without"
        else:
            words[index + 1] = str(path)
            continue
        value = value.removeprefix("./").removeprefix("/")
        raise InvalidConfig(
            f"{name}: {option} {value}, with which its archive was built, {fault}, "
            f"and torchserve-batching serve {STORE / name}.mar serves it as it is"
        )
    if words:
        print(f"{name}: built with {' '.join(words)}, as its archive; {ARCHIVE} {name} builds it without", flush=True)
    return words
