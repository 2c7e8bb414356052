"""The command line of archive.sh: `./archive.sh NAME... --precision int8 --calibrate photographs`."""

import argparse
from pathlib import Path

from deploy.build.precision.inputs import FEWEST, MOST
from deploy.models import MODEL_LIST, ROOT, models

# These are torch-model-archiver's own names, and what each appends. zip-store is our default: weights do not compress.
SUFFIXES = {"zip-store": ".mar", "default": ".mar", "tgz": ".tar.gz", "no-archive": ""}


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse it; argparse ends the process where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="archive.sh",
        description="Build archives of a model list.",
        epilog="CACHE_DIR names a folder for exported graphs; without it they are kept in .exports of the model store. "
        "docs/precision.md explains int8 and the proofs.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of the list; examples/ has {', '.join(models())}")
    parser.add_argument("--all", action="store_true", help="every model of the list")
    parser.add_argument("--models", type=Path, default=MODEL_LIST, metavar="FILE", help="default: examples/models.yaml")
    parser.add_argument("--weights", metavar="PATH|HUB_ID|random", help="instead of those the list names")
    parser.add_argument("--engine", choices=["auto", "openvino", "torch"], default="auto")
    parser.add_argument("--archive-format", choices=list(SUFFIXES), default="zip-store")
    parser.add_argument("--export-path", type=Path, default=ROOT / "model_store", help="default: model_store")
    parser.add_argument(
        "--min-chrf",
        type=float,
        metavar="N",
        help="refuse a converted translation model whose answers to samples.txt are farther than that from fp32's",
    )
    parser.add_argument("--force", action="store_true", help="build even what is up to date")
    _add_precision(parser)
    options = parser.parse_args(arguments)
    if bool(options.names) == options.all:
        parser.error("name models, or give --all")
    if options.weights not in (None, "random") and (options.all or len(options.names) > 1):
        parser.error("--weights PATH belongs to one model: name just that one")
    if options.calibrate is not None and options.precision is None:
        parser.error("--calibrate belongs to --precision int8: give both")
    if options.all and (options.precision or options.validate):
        parser.error("--precision and --validate belong to models of one kind: name them")
    return options


def _add_precision(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "precision", "int8 beside fp32, for image classifiers and text encoders; how near answers are is printed"
    )
    group.add_argument(
        "--precision", choices=["int8"], help="add an int8 graph; needs deploy/extras/environment.sh int8"
    )
    words = (
        f"what int8 learns from: a folder of images or texts, or a file of lines; at least {FEWEST}, of which "
        f"no more than {MOST} are taken"
    )
    group.add_argument("--calibrate", type=Path, metavar="FOLDER|FILE", help=words)
    words = "what precisions are held against fp32 with; default: a quarter of --calibrate, or the examples' samples"
    group.add_argument("--validate", type=Path, metavar="FOLDER|FILE", help=words)
    words = (
        "agreement that int8 must have, or nothing is built; default: 0.99 of labels or accuracy, 0.98 of the others"
    )
    group.add_argument("--min-agreement", type=_share, metavar="X", help=words)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value
