"""The command line of `torchserve-client`: arguments in, an exit code out.

0  done      1  predictions failed, or the server refused      2  wrong usage, or no server      130  Ctrl-C
"""

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from urllib3 import disable_warnings
from urllib3.exceptions import InsecureRequestWarning

from torchserve_client import bulk, commands
from torchserve_client.client import Client
from torchserve_client.errors import ClientError, InvalidPayload, NoConnection, TLSFailed, Unreachable
from torchserve_client.gateway import DEFAULT_URL as DEFAULT_GATEWAY
from torchserve_client.inputs import shown
from torchserve_client.management import Management
from torchserve_client.nodes import Nodes, read_keys
from torchserve_client.retry import RetryPolicy
from torchserve_client.version import VERSION

# Exit codes.
FAILED = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as of a shell
# Environment variables that say where the server is, and the addresses where they are not set.
URL = "TORCHSERVE_URL"
MANAGEMENT_URL = "TORCHSERVE_MANAGEMENT_URL"
NODES = "TORCHSERVE_NODES"
GATEWAY = "TORCHSERVE_GATEWAY"
DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_MANAGEMENT_URL = "http://127.0.0.1:8081"
# Seconds for workers to become ready, and for a request with its retries: TorchServe's own defaults of startupTimeout
# and of responseTimeout.
TIMEOUT_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a command that fails says why in one line on stderr."""
    root = parser()
    options = root.parse_args(arguments)
    if options.key is not None and options.cert is None:
        root.error("--key needs --cert")
    if options.management and options.nodes:
        root.error("--management and --nodes say the same thing: give one")
    if getattr(options, "canary_header", None) and options.canary is None:
        root.error("--canary-header needs --canary")
    try:
        keys, trust = read_keys(options.keys), _trust(options)
        # A person waits for `describe`: what is not there now is left out.
        retry = RetryPolicy(attempts=1) if options.command == "describe" else None
        url, timeout_s = options.server or os.environ.get(URL, DEFAULT_URL), getattr(options, "timeout", TIMEOUT_S)
        with Client(url, token=keys.get("inference"), timeout_s=timeout_s, retry=retry, **trust) as client:
            run: commands.Command = options.run
            return run(options, _nodes(options, client, keys.get("management"), trust), client)
    except (Unreachable, NoConnection, TLSFailed, InvalidPayload) as error:
        return _failed(error.message, USAGE)
    except (ClientError, OSError) as error:
        return _failed(str(error), FAILED)
    except KeyboardInterrupt:
        words = "interrupted"
        if options.command == "predict":
            words += f"; what was answered is in {shown(options.out)}, the same command goes on from there"
        return _failed(words, INTERRUPTED)


def _failed(words: str, code: int) -> int:
    # An OSError names its file, which need not be UTF-8.
    commands.aside.print(f"client: {shown(words)}")
    return code


def _trust(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that say whom to trust, of `Client` and `Management` alike."""
    if options.insecure:
        # It was asked for; urllib3 would warn with every call.
        disable_warnings(InsecureRequestWarning)
    verify = False if options.insecure else options.cacert or True
    return {"verify": verify, "cert": (options.cert, options.key) if options.key else options.cert}


def _nodes(options: argparse.Namespace, client: Client, key: str | None, trust: dict[str, Any]) -> Nodes:
    """Return the servers of the command line, or else those of the environment."""
    if file := options.nodes or (not options.management and os.environ.get(NODES)):
        return Nodes.read(Path(file), **trust)
    url = options.management or os.environ.get(MANAGEMENT_URL, DEFAULT_MANAGEMENT_URL)
    management = Management(url, token=key, **trust)
    # Both addresses are of one server if they come from one place: the command line, the environment, or the defaults.
    is_same = bool(options.server) == bool(options.management) and (
        options.server or len({URL, MANAGEMENT_URL} & {*os.environ}) != 1
    )
    name = urlsplit(management.url).netloc
    return Nodes({name: management}, inference={name: client} if is_same else {})


def parser() -> argparse.ArgumentParser:
    """Make the parser of every command with its arguments."""
    root = argparse.ArgumentParser(prog="torchserve-client", description="Operate and use a TorchServe.")
    root.add_argument("--version", action="version", version=f"torchserve-client {VERSION}")
    words = f"inference API of a server or gateway; default: ${URL} or {DEFAULT_URL}"
    root.add_argument("--server", metavar="URL", help=words)
    words = f"management API; default: ${MANAGEMENT_URL} or {DEFAULT_MANAGEMENT_URL}"
    root.add_argument("--management", metavar="URL", help=words)
    words = f"the nodes.json of make serve: all of its nodes, each with its key; default: ${NODES}"
    root.add_argument("--nodes", type=Path, metavar="FILE", help=words)
    words = "TorchServe's key_file.json, where the server asks for tokens"
    root.add_argument("--keys", type=Path, metavar="FILE", help=words)
    _trust_options(root)
    added = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    register = _command(added, commands.register, "register an archive of the model store")
    register.add_argument("--url", metavar="ARCHIVE", help="its file name; default: MODEL.mar")
    _batch_parameters(register, kept="the archive's own")
    register.add_argument("--wait", action="store_true", help="wait until its workers are ready; say why one failed")

    scale = _command(added, commands.scale, "change the number of workers")
    scale.add_argument("workers", type=_count, metavar="WORKERS")
    scale.add_argument("--wait", action="store_true", help="wait until they are ready")
    _timeout_option(scale, "default: %(default)g")

    words = "Show a model, or all. Of one, the inference API is asked for its inputs, outputs and max_batch_size, too."
    describe = added.add_parser("describe", help="show a model, or all of them", description=words)
    describe.set_defaults(run=commands.describe)
    describe.add_argument("model", metavar="MODEL", nargs="?")
    describe.add_argument("--json", action="store_true", help="as the management API has it; of one with `metadata`")

    _timeout_option(_command(added, commands.wait_ready, "wait until every worker is ready"), "default: %(default)g")

    words = "remove a model; where a gateway serves it, off its routes first"
    _gateway_option(_command(added, commands.unregister, words))

    rollout = _command(added, commands.rollout, "new batch parameters or a new archive on a live model, nothing lost")
    rollout.add_argument("--url", metavar="ARCHIVE", help="a new archive; default: the one that serves")
    _batch_parameters(rollout, kept="the new archive's, or the old version's")
    rollout.add_argument("--model-store", type=Path, default=Path("model_store"), metavar="FOLDER", help="%(default)s")
    what = rollout.add_mutually_exclusive_group()
    words = "register the new version beside the old one and send it this share; later, change the share"
    what.add_argument("--canary", type=_percent, metavar="PERCENT", help=words)
    what.add_argument("--promote", action="store_true", help="give the canary everything, and retire the old version")
    what.add_argument("--abort", action="store_true", help="send the canary nothing more, and retire it")
    words = "with --canary: requests that carry it go there, whatever the share"
    rollout.add_argument("--canary-header", type=_header, metavar="NAME:VALUE", help=words)
    _gateway_option(rollout)

    _asking_commands(added)
    return root


def _asking_commands(added: Any) -> None:
    """Add the commands that ask the inference API alone."""
    predict = _command(added, bulk.predict, "every file of a folder or line of a file; run it again to go on")
    words = "a folder of files, each sent as it is; or a file of lines"
    predict.add_argument("path", type=Path, metavar="PATH", help=words)
    words = "answers; started or continued"
    predict.add_argument("--out", type=Path, required=True, metavar="JSONL", help=words)
    predict.add_argument("--in-flight", type=_positive, metavar="N", help="requests at once; default: by batch_size")

    embed = _command(added, commands.embed, "the vectors of texts, one a line")
    embed.add_argument("text", metavar="TEXT", nargs="*", help="default: the lines of standard input")

    for command in (predict, embed):
        command.add_argument(
            "--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="top_k=3"
        )

    rerank = _command(added, commands.rerank, "documents by how well they answer a query, best first")
    rerank.add_argument("query", metavar="QUERY")
    rerank.add_argument("document", metavar="DOCUMENT", nargs="*", help="default: the lines of standard input")
    rerank.add_argument("--top-n", type=_positive, metavar="N", help="how many; default: all")

    for command in (predict, embed, rerank):
        _timeout_option(command, "of a request with its retries; %(default)g")


def _command(added: Any, run: commands.Command, words: str) -> argparse.ArgumentParser:
    """Add a command of the function's name, which runs the function."""
    name = run.__name__.replace("_", "-")
    command: argparse.ArgumentParser = added.add_parser(name, help=words, description=f"{words.capitalize()}.")
    command.set_defaults(run=run)
    command.add_argument("model", metavar="MODEL")
    return command


def _timeout_option(command: argparse.ArgumentParser, words: str) -> None:
    command.add_argument("--timeout", type=_seconds, default=TIMEOUT_S, metavar="S", help=words)


def _gateway_option(command: argparse.ArgumentParser) -> None:
    words = f"the gateway's control API; default: ${GATEWAY} or {DEFAULT_GATEWAY}, if it has these nodes"
    command.add_argument("--gateway", default=os.environ.get(GATEWAY) or None, metavar="URL", help=words)


def _trust_options(root: argparse.ArgumentParser) -> None:
    """Add what an https server asks for, by curl's names."""
    words = "CA bundle that certificates are checked against, file or folder; default: $REQUESTS_CA_BUNDLE"
    root.add_argument("--cacert", type=Path, metavar="PATH", help=words)
    root.add_argument("--cert", type=Path, metavar="FILE", help="the client's certificate, with its key or without")
    root.add_argument("--key", type=Path, metavar="FILE", help="its key, where --cert has none")
    root.add_argument("--insecure", action="store_true", help="check no certificate")


def _batch_parameters(command: argparse.ArgumentParser, kept: str) -> None:
    command.add_argument("--batch-size", type=_positive, metavar="N", help=f"default: {kept}")
    command.add_argument("--max-batch-delay", type=_positive, metavar="MS", help=f"default: {kept}")
    command.add_argument(
        "--logs", type=Path, default=Path("logs"), metavar="FOLDER", help="TorchServe's; why a worker failed is there"
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _positive(text: str) -> int:
    if (number := _count(text)) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _number(most: float, words: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most or number == float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {words}")
    return number


_seconds = partial(_number, float("inf"), "of seconds")
_percent = partial(_number, 100.0, "from 0 to 100")


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def _option(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if shown(value) != value:
        raise argparse.ArgumentTypeError(f"{name}: not UTF-8")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
