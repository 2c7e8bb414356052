"""Build archives; archive.sh calls it: `./archive.sh NAME... --precision int8 --calibrate photographs`."""

import argparse
import ast
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from deploy.archives.archive import (
    SUFFIXES,
    ArchiverFailed,
    Recipe,
    describe_defaults,
    find_cache_folder,
    find_classic_cause,
    report,
)
from deploy.archives.fingerprint import read_packed
from deploy.archives.sources import WeightsNotMade, WeightsUnavailable
from deploy.models import MINE, MODEL_LIST, ROOT, TENSORS, Engine, ModelEntry, UnknownModel, model, models
from deploy.progress import printable
from deploy.rooms import ROOMS, open_room
from handlers.config import parse
from handlers.engines.function import FILE, FOLDER
from handlers.errors import InvalidConfig, reason
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, DeclaredSignature, Tensor, merge_signature

EXAMPLES = """\
docs/how-to/bring-a-model.md explains model lists, docs/how-to/int8.md int8.

examples:
  ./archive.sh mobilenet-v2
  ./archive.sh flowers --models my/models.yaml --weights my/checkpoint.pt --engine openvino"""

# deploy.archives.precision.request; None without comparisons.
PRECISION = open_room("precision")


def main(arguments: list[str]) -> int:
    """Build the archives that the command line names; return 1 if one cannot be built."""
    options = parse_arguments(arguments)
    cache_path, name = find_cache_folder(os.environ), options.models.name
    try:
        if options.source is not None:
            asked, name = options.names[0] if options.names else None, str(options.source)
            # Its import takes seconds, which no other command needs.
            moved, is_whole = open_room("migrate").write_entry(
                options.source, asked, options.models, is_stock=options.stock
            )
            options.names = [moved] if is_whole else []
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
                PRECISION.read_options(options) if PRECISION else None,
            )
            try:
                archive = (None if options.force else recipe.find()) or recipe.build()
            except WeightsNotMade as error:
                # --all builds every model that it can; a model that is named must be built.
                if not options.all:
                    raise
                print(printable(f"archive.sh: left out: {error}"), file=sys.stderr)
                continue
            report(archive, time.monotonic() - started)
            place = os.path.relpath(archive.path)
            if cause := find_classic_cause(recipe.entry.config()):
                print(f"{place}: classic mode, since model-config.yaml has {cause}")
            if signature := describe_signature(recipe.entry, archive.path):
                print(printable(f"{place}: {signature}"))
            if archive.is_new and (defaults := describe_defaults(recipe.entry)):
                print(f"{place}: {defaults}")
    except Exception as error:
        if options.debug:
            raise
        is_known = isinstance(error, UnknownModel | WeightsUnavailable | InvalidConfig | ArchiverFailed | OSError)
        line = " ".join(str(error).split()) if is_known else f"{name}: {reason(error)}; --debug prints the traceback"
        if isinstance(error, InvalidConfig) and not line.startswith(f"{name}: "):
            line = f"{name}: {line}"
        print(printable(f"archive.sh: {line}"), file=sys.stderr)
        return 1
    return 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line; argparse ends the process if it is wrong."""
    parser = argparse.ArgumentParser(
        prog="archive.sh",
        usage="archive.sh (NAME... | --all) [OPTION...]",
        description="Build TorchServe archives from the models of a list.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("models")
    group.add_argument(
        "names", nargs="*", metavar="NAME", help=f"build this model; the default list has {', '.join(models())}"
    )
    group.add_argument("--all", action="store_true", help="build every model of the list")
    words = "read this model list (default: examples/models.yaml)"
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
    group.add_argument("--export-path", type=Path, default=ROOT / "model_store", metavar="FOLDER", help=words)
    words = "write this format; no-archive is a folder, for development (default: zip-store, uncompressed)"
    group.add_argument("--archive-format", choices=list(SUFFIXES), default="zip-store", help=words)
    group.add_argument("--force", action="store_true", help="build archives that are up to date, too")
    group.add_argument("--debug", action="store_true", help="print the traceback of an error")

    group = parser.add_argument_group("precision", "Each build prints how near the answers are to the model's own.")
    if PRECISION:
        PRECISION.add_options(group)
    words = "refuse a converted translation model whose chrF against fp32, 0..100, is less (default: any)"
    group.add_argument("--min-chrf", type=float, metavar="N", help=words)

    parser.set_defaults(source=None, stock=False)
    options = parser.parse_args(arguments)
    if options.models is None:
        options.models = MINE if options.source else MODEL_LIST
    if options.source is not None:
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
    return options


def describe_signature(entry: ModelEntry, path: Path) -> str | None:
    """Describe the inputs and outputs of a model of tensors; None for another task."""
    if entry.handler != TENSORS:
        return None
    try:
        signature = merge_signature(_read_description(path), parse(TensorsConfig, entry.config().get("handler")))
    except (LookupError, ValueError, InvalidConfig):
        # The function's parameters come from another place; only the worker knows them.
        return None
    outputs = "the outputs that infer returns" if signature.outputs is None else _join(signature.outputs.values())
    return f"{_join(signature.inputs.values())} -> {outputs}"


def _read_description(path: Path) -> DeclaredSignature:
    try:
        return DeclaredSignature.from_json(read_packed(path, SIGNATURE).decode())
    except LookupError:
        module = ast.parse(read_packed(path, f"{FOLDER}/{FILE}"))
    (infer,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "infer")
    return DeclaredSignature(tuple(Tensor(each.arg) for each in (*infer.args.args, *infer.args.kwonlyargs)))


def _join(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{tensor.name} {tensor}" for tensor in tensors)


def run_in_child(arguments: list[str]) -> int:
    """Build in a child, so that a crash of a library ends in one line."""
    child = os.fork()
    if child == 0:
        # A parent that is killed takes its child along (PR_SET_PDEATHSIG).
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        return main(arguments)
    # A terminal sends Ctrl-C to both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda sent, _: os.kill(child, sent))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    known = {"SIGKILL": "; the kernel sends it if memory runs out", "SIGTERM": "", "SIGHUP": ""}
    crash = "; a library crashed: precision: fp32 in model-config.yaml or --engine torch may avoid it"
    print(f"archive.sh: {name} ended the build{known.get(name, crash)}", file=sys.stderr)
    return 128 - code


if __name__ == "__main__":
    sys.exit(run_in_child(sys.argv[1:]))
