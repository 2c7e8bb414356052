"""The command `torchserve-batching archive NAME...`, and archive.sh: build archives."""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from deploy.archives.archive import ArchiverFailed, Recipe, find_cache_folder, report
from deploy.archives.arguments import make_recipe, parse_arguments, recall_recipe
from deploy.archives.fingerprint import handler_files, read_packed
from deploy.archives.mode import describe_defaults, find_classic_cause
from deploy.archives.names import prune
from deploy.archives.sources import WeightsNotMade, WeightsUnavailable
from deploy.models import UnknownModel, model, models
from deploy.places import ARCHIVE
from deploy.progress import printable
from deploy.rooms import open_room
from handlers.archive_files import BUILD, hash_files
from handlers.errors import InvalidConfig, reason
from torchserve_client.version import VERSION


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    if options.check:
        return list_outdated(options.export_path)
    cache_path, name = find_cache_folder(os.environ), options.models.name
    try:
        if options.source is not None:
            asked, name = options.names[0] if options.names else None, str(options.source)
            # Its import takes seconds, which no other command needs.
            moved, is_whole = open_room("migrate").write_entry(
                options.source, asked, options.models, is_stock=options.stock
            )
            options.names = [moved] if is_whole else []
        recipes = []
        # All are checked before the first is built.
        for name in list(models(options.models)) if options.all else options.names:
            entry = model(name, options.models)
            recipe = recall_recipe(entry, cache_path) if options.recall else make_recipe(entry, options, cache_path)
            try:
                recipe.check(with_code=options.all or len(options.names) > 1)
                recipes.append(recipe)
            except WeightsNotMade as error:
                # --all builds every model that it can; a model that is named must be built.
                if not options.all:
                    raise
                print(printable(f"{ARCHIVE}: left out: {error}"), file=sys.stderr)
        for recipe in recipes:
            build(recipe, options)
    except Exception as error:
        if options.debug:
            raise
        is_known = isinstance(error, UnknownModel | WeightsUnavailable | InvalidConfig | ArchiverFailed | OSError)
        line = " ".join(str(error).split()) if is_known else f"{name}: {reason(error)}; --debug prints the traceback"
        if isinstance(error, InvalidConfig) and not line.startswith(f"{name}: "):
            line = f"{name}: {line}"
        print(printable(f"{ARCHIVE}: {line}"), file=sys.stderr)
        return 1
    return 0


def build(recipe: Recipe, options: argparse.Namespace) -> None:
    """Build an archive unless it is up to date, and print what it is."""
    started = time.monotonic()
    archive = (None if options.force else recipe.find()) or recipe.build()
    report(archive, time.monotonic() - started, is_served=options.recall)
    place = os.path.relpath(archive.path)
    for path in prune(archive.path, options.keep) if options.keep else ():
        print(f"{os.path.relpath(path)}: removed")
    if cause := find_classic_cause(recipe.entry.config()):
        print(f"{place}: classic mode, since model-config.yaml has {cause}")
    if archive.is_new and (defaults := describe_defaults(recipe.entry)):
        print(f"{place}: {defaults}")


def list_outdated(folder: Path) -> int:
    """Print each archive of a folder with other handlers than this version's; return 1 if there are any."""
    wanted, code = hash_files(handler_files()), 0
    # NAME.mar is a second name of one of the others.
    for path in {path.stat().st_ino: path for path in sorted(folder.glob("*.mar"), reverse=True)}.values():
        try:
            build = json.loads(read_packed(path, BUILD))  # of any format
        except (LookupError, ValueError):
            print(f"{os.path.relpath(path)}: not built by torchserve-batching")
            continue
        found = {name: value for name, value in build["files"].items() if name.startswith("handlers/")}
        changed = sorted(name for name in found.keys() | wanted if found.get(name) != wanted.get(name))
        if changed:
            code, some, maker = 1, ", ".join(changed[:3]), build.get("made_with") or "an older version"
            maker = f"another state of {VERSION}" if maker == VERSION else f"{maker}, installed is {VERSION}"
            print(
                f"{os.path.relpath(path)}: built with {maker}; "
                f"{len(changed)} modules differ: {some}; CHANGELOG.md says why; to upgrade, build it again"
            )
    return code


def run_in_child(arguments: list[str]) -> int:
    """Build in a child, so that a crash of a library ends in one line."""
    # Threads that spin while they wait take twice the processor time, and up to four times as long beside other load.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # a parent that is killed takes its child along (PR_SET_PDEATHSIG)
        return main(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to both
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda sent, _: os.kill(child, sent))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    known = {"SIGKILL": "; the kernel sends it if memory runs out", "SIGTERM": "", "SIGHUP": ""}
    crash = "; a library crashed: precision: fp32 in model-config.yaml or --engine torch may avoid it"
    print(f"{ARCHIVE}: {name} ended the build{known.get(name, crash)}", file=sys.stderr)
    return 128 - code


if __name__ == "__main__":
    sys.exit(run_in_child(sys.argv[1:]))
