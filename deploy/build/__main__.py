"""`python -m deploy.build`, which archive.sh calls: `./archive.sh NAME... --precision int8 --calibrate photographs`."""

import argparse
import ast
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from deploy.build.archive import SUFFIXES, ArchiverFailed, Recipe, defaults_of, find_cache_folder, report, why_classic
from deploy.build.fingerprint import read_packed
from deploy.build.precision.inputs import FEWEST, MOST
from deploy.build.precision.request import PrecisionRequest
from deploy.build.sources import NotMade, WeightsUnavailable
from deploy.models import MODEL_LIST, ROOT, TENSORS, Engine, ModelEntry, UnknownModel, model, models
from handlers.config import parse
from handlers.engines.function import FILE, FOLDER
from handlers.errors import InvalidConfig, reason
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature, Tensor, merge_signature


def main(arguments: list[str]) -> int:
    """Build what the command line names; 1 when one could not be built."""
    options = parsed(arguments)
    cache_path, name = find_cache_folder(os.environ), options.models.name
    try:
        for name in list(models(options.models)) if options.all else options.names:
            started = time.monotonic()
            recipe = Recipe(
                model(name, options.models),
                options.weights,
                options.engine,
                options.archive_format,
                options.export_path.resolve(),
                cache_path,
                options.min_chrf,
                PrecisionRequest(options.precision, options.calibrate, options.validate, options.min_agreement),
            )
            try:
                archive = (None if options.force else recipe.find()) or recipe.build()
            except NotMade as error:
                # Whoever wants all there is gets it; who names one needs that one.
                if not options.all:
                    raise
                print(f"archive.sh: left out: {error}", file=sys.stderr)
                continue
            report(archive, time.monotonic() - started)
            if cause := why_classic(recipe.entry.config()):
                print(f"{os.path.relpath(archive.path)}: classic mode, since model-config.yaml has {cause}")
            if signature := signature_of(recipe.entry, archive.path):
                print(f"{os.path.relpath(archive.path)}: {signature}")
            if archive.is_new and (defaults := defaults_of(recipe.entry)):
                print(f"{os.path.relpath(archive.path)}: {defaults}")
    except Exception as error:
        if options.debug:
            raise
        is_known = isinstance(error, UnknownModel | WeightsUnavailable | InvalidConfig | ArchiverFailed | OSError)
        line = " ".join(str(error).split()) if is_known else f"{name}: {reason(error)}; --debug prints the traceback"
        if isinstance(error, InvalidConfig) and not line.startswith(f"{name}: "):
            line = f"{name}: {line}"
        print(f"archive.sh: {line}", file=sys.stderr)
        return 1
    return 0


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse it; argparse ends the process where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="archive.sh",
        description="Build archives of a model list.",
        epilog="CACHE_DIR names a folder for exported graphs; without it they are kept in .exports of the model store. "
        "docs/explanation/precision.md explains int8 and the proofs.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of the list; examples/ has {', '.join(models())}")
    parser.add_argument("--all", action="store_true", help="every model of the list")
    parser.add_argument("--models", type=Path, default=MODEL_LIST, metavar="FILE", help="default: examples/models.yaml")
    parser.add_argument("--weights", metavar="PATH|HUB_ID|random", help="instead of those the list names")
    parser.add_argument("--engine", choices=get_args(Engine), default="auto")
    parser.add_argument("--archive-format", choices=list(SUFFIXES), default="zip-store")
    parser.add_argument("--export-path", type=Path, default=ROOT / "model_store", help="default: model_store")
    parser.add_argument(
        "--min-chrf",
        type=float,
        metavar="N",
        help="refuse a converted translation model whose answers to samples.txt are farther than that from fp32's",
    )
    parser.add_argument("--force", action="store_true", help="build even what is up to date")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
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
    words = (
        "what precisions are held against fp32 with, maybe in a folder for each class; default: a quarter of "
        "--calibrate, or the examples' samples"
    )
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


def signature_of(model: ModelEntry, path: Path) -> str | None:
    """Write inputs and outputs, with their datatypes and shapes; None for any other task.

    Args:
        model: the entry of the list, whose configuration adds to what the model says.
        path: its archive, of any format.
    """
    if model.handler != TENSORS:
        return None
    try:
        said = _said(path)
        signature = merge_signature(said, parse(TensorsConfig, model.config().get("handler")))
    except (LookupError, ValueError, InvalidConfig):
        # Its function takes its parameters from elsewhere; whoever loads it sees them.
        return None
    outputs = "whatever infer gives" if signature.outputs is None else _listed(signature.outputs.values())
    return f"{_listed(signature.inputs.values())} -> {outputs}"


def _said(path: Path) -> DeclaredSignature:
    try:
        return DeclaredSignature.from_json(read_packed(path, SIGNATURE).decode())
    except LookupError:
        module = ast.parse(read_packed(path, f"{FOLDER}/{FILE}"))
    (infer,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "infer")
    return DeclaredSignature(tuple(Tensor(each.arg) for each in (*infer.args.args, *infer.args.kwonlyargs)))


def _listed(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{tensor.name} {tensor}" for tensor in tensors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
