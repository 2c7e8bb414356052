"""The command line of `torchserve-client`: arguments in, an exit code out.

0  done      1  predictions failed, or the server refused      2  wrong usage, or no server      130  Ctrl-C
"""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from urllib3 import disable_warnings
from urllib3.exceptions import InsecureRequestWarning

from torchserve_client import bulk, commands
from torchserve_client.archives import check_name
from torchserve_client.arguments import FAILED, USAGE, Parser, duration_s, ends_with_reader, number
from torchserve_client.client import Client
from torchserve_client.errors import ClientError, InvalidPayload, NoConnection, TLSFailed, Unreachable
from torchserve_client.gateway import DEFAULT_URL as DEFAULT_GATEWAY
from torchserve_client.inputs import printable
from torchserve_client.management import Management
from torchserve_client.nodes import Nodes, read_tokens
from torchserve_client.retry import RetryPolicy
from torchserve_client.version import VERSION

PROGRAM = "torchserve-client"
# An exit code, besides USAGE and FAILED.
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
# Environment variables for the addresses, and the addresses without them.
URL = "TORCHSERVE_URL"
MANAGEMENT_URL = "TORCHSERVE_MANAGEMENT_URL"
NODES = "TORCHSERVE_NODES"
GATEWAY = "TORCHSERVE_GATEWAY"
DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_MANAGEMENT_URL = "http://127.0.0.1:8081"
# The folder of a server on this machine, which `torchserve-batching --dir` names; else the current one.
HOME = Path(os.environ.get("TORCHSERVE_BATCHING_DIR", ""))
# Seconds for workers to become ready, and for a request with its retries: TorchServe's own defaults of startupTimeout
# and of responseTimeout.
TIMEOUT_S = 120.0

Added: TypeAlias = "argparse._SubParsersAction[Parser]"  # the commands of a parser


@ends_with_reader
def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    root = parser(program)
    options = root.parse_args(arguments)
    if options.client_key is not None and options.cert is None:
        root.error("--client-key needs --cert")
    if options.management_url and options.nodes_file:
        root.error("--management-url and --nodes-file cannot both be set; pass one")
    if getattr(options, "to", None) and options.archive:
        root.error("--to and --archive cannot both be set; pass one")
    if getattr(options, "canary_header", None) and options.canary is None:
        root.error("--canary-header needs --canary")
    try:
        tokens, trust = read_tokens(options.token_file), _trust(options)
        # A person waits for `describe`, so it does not retry.
        retry = RetryPolicy(attempts=1) if options.command == "describe" else None
        url, timeout_s = options.url or os.environ.get(URL, DEFAULT_URL), getattr(options, "timeout", TIMEOUT_S)
        with Client(url, token=tokens.get("inference"), timeout_s=timeout_s, retry=retry, **trust) as client:
            run: commands.Command = options.run
            return run(options, _nodes(options, client, tokens.get("management"), trust), client)
    except (Unreachable, NoConnection, TLSFailed, InvalidPayload) as error:
        return _fail(program, error.message, USAGE)
    except (ClientError, OSError) as error:
        return _fail(program, str(error), FAILED)
    except KeyboardInterrupt:
        words = "interrupted"
        if options.command == "predict":
            words += f"; {printable(options.out)} contains the answers so far, run the command again to resume"
        return _fail(program, words, INTERRUPTED)


def _fail(program: str, words: str, code: int) -> int:
    commands.err.print(f"{program}: {printable(words)}")  # an OSError names its file, which need not be UTF-8
    return code


def _trust(options: argparse.Namespace) -> dict[str, Any]:
    """Return the TLS arguments of `Client` and `Management`."""
    if options.insecure:
        disable_warnings(InsecureRequestWarning)  # the user asked for it; urllib3 would warn with every call
    verify = False if options.insecure else options.cacert or True
    return {"verify": verify, "cert": (options.cert, options.client_key) if options.client_key else options.cert}


def _nodes(options: argparse.Namespace, client: Client, token: str | None, trust: dict[str, Any]) -> Nodes:
    """Return the servers of the command line, or else those of the environment."""
    if file := options.nodes_file or (not options.management_url and os.environ.get(NODES)):
        return Nodes.read(Path(file), **trust)
    url = options.management_url or os.environ.get(MANAGEMENT_URL, DEFAULT_MANAGEMENT_URL)
    management = Management(url, token=token, **trust)
    # Both addresses are of one server if they come from one place: the command line, the environment, or the defaults.
    is_same = bool(options.url) == bool(options.management_url) and (
        options.url or len({URL, MANAGEMENT_URL} & {*os.environ}) != 1
    )
    name = urlsplit(management.url).netloc
    return Nodes({name: management}, inference={name: client} if is_same else {})


def parser(program: str = PROGRAM) -> Parser:
    root = Parser(
        prog=program,
        description="Request predictions from a TorchServe, and operate its models.",
        examples=(
            f"{program} predict mobilenet-v2 photographs/ --out answers.jsonl",
            f"{program} --nodes-file .nodes/nodes.json describe",
        ),
    )
    root.add_argument("--version", action="version", version=f"{program} {VERSION}")
    server = root.add_argument_group("server")
    words = f"inference API of a server or gateway; default: ${URL} or {DEFAULT_URL}"
    server.add_argument("--url", metavar="URL", help=words)
    words = f"management API; default: ${MANAGEMENT_URL} or {DEFAULT_MANAGEMENT_URL}"
    server.add_argument("--management-url", metavar="URL", help=words)
    words = f"nodes.json of make serve, with the addresses and keys of all nodes; default: ${NODES}"
    server.add_argument("--nodes-file", type=Path, metavar="FILE", help=words)
    words = "TorchServe's key_file.json, if the server requires tokens"
    server.add_argument("--token-file", type=Path, metavar="FILE", help=words)
    tls = root.add_argument_group("TLS, with curl's names")
    words = "CA bundle that certificates are checked against, file or folder; default: $REQUESTS_CA_BUNDLE"
    tls.add_argument("--cacert", type=Path, metavar="PATH", help=words)
    tls.add_argument("--cert", type=Path, metavar="FILE", help="client certificate, optionally with its private key")
    tls.add_argument("--client-key", type=Path, metavar="FILE", help="private key, if --cert does not contain it")
    tls.add_argument("--insecure", action="store_true", help="skip the check of certificates")
    added = root.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _add_management(added)
    _add_rollout(added)
    _add_inference(added)
    return root


def _add_management(added: Added) -> None:
    """Add the commands that only call the management API."""
    register = _command(
        added,
        commands.register,
        "register an archive of the model store",
        ("register mobilenet-v2 --wait", "register reviews --archive reviews-2.mar --batch-size 16"),
    )
    _add_registration(register, "file name of the archive; default: MODEL.mar", "the archive's own")
    register.set_defaults(model_store=HOME / "model_store")
    register.add_argument("--wait", action="store_true", help="wait until its workers are ready; print why one failed")

    scale = _command(added, commands.scale, "change the number of workers", ("scale mnist 2", "scale mnist 2 --wait"))
    scale.add_argument("workers", type=number(int, 0), metavar="WORKERS", help="number of workers, 0 or more")
    scale.add_argument("--wait", action="store_true", help="wait until they are ready")
    _add_timeout(scale, "time to wait for the workers")

    describe = _command(
        added,
        commands.describe,
        "show the versions, workers and queue of models",
        ("describe", "describe mnist --json"),
    )
    describe.add_argument(
        "model", metavar="MODEL", nargs="?", help="one model, with its inputs and outputs; default: all models"
    )
    describe.set_defaults(model_store=HOME / "model_store")
    words = "print the management API's JSON; with MODEL also its `metadata`"
    describe.add_argument("--json", action="store_true", help=words)

    examples = ("wait-ready mobilenet-v2", "wait-ready mobilenet-v2 --timeout 5m")
    wait_ready = _command(added, commands.wait_ready, "wait until every worker is ready", examples)
    _add_timeout(wait_ready, "time to wait for the workers")


def _add_rollout(added: Added) -> None:
    """Add the commands that the gateway takes part in."""
    words = "remove every version of a model; stop routing to it first if a gateway serves it"
    examples = ("unregister mnist", "unregister mnist --gateway http://127.0.0.1:8003")
    unregister = _command(added, commands.unregister, words, examples)
    unregister.set_defaults(model_store=HOME / "model_store")
    _add_gateway(unregister)

    rollout = _command(
        added,
        commands.rollout,
        "replace a model's archive or batch parameters without losing a request",
        ("rollout mobilenet-v2 --to 2.0 --canary 5", "rollout mobilenet-v2 --batch-size 16"),
    )
    _add_registration(
        rollout, "file name of a new archive; default: the running one", "the new archive's or the old version's"
    )
    words = "go to a version whose archive is in the model store, MODEL-VERSION.mar, such as the one before"
    rollout.add_argument("--to", type=_version, metavar="VERSION", help=words)
    words = "folder of the archives; default: %(default)s"
    rollout.add_argument("--model-store", type=Path, default=HOME / "model_store", metavar="FOLDER", help=words)
    canary = rollout.add_argument_group("canary")
    action = canary.add_mutually_exclusive_group()
    words = "send the new version PERCENT of the traffic, 0 to 100; later, change the share"
    action.add_argument("--canary", type=number(float, 0, 100), metavar="PERCENT", help=words)
    words = "make the canary the default and retire the old version"
    action.add_argument("--promote", action="store_true", help=words)
    action.add_argument("--abort", action="store_true", help="stop routing to the canary and retire it")
    words = "with --canary: always send requests with this header to the new version"
    canary.add_argument("--canary-header", type=_header, metavar="NAME:VALUE", help=words)
    _add_gateway(rollout)


def _add_inference(added: Added) -> None:
    """Add the commands that call the inference API."""
    words = "predict each file or line; rerun to resume"
    examples = (
        "predict mobilenet-v2 photographs/ --out answers.jsonl",
        "predict mnist rows.txt --out o.jsonl --in-flight 2",
    )
    predict = _command(added, bulk.predict, words, examples)
    predict.add_argument("path", type=Path, metavar="PATH", help="folder of files, or file of lines of text or JSON")
    words = "file for the answers; an existing one is resumed"
    predict.add_argument("--out", type=Path, required=True, metavar="JSONL", help=words)
    words = "lines per request; default: 64, or fewer if the model accepts fewer"
    predict.add_argument("--max-items", type=number(int, 1), metavar="N", help=words)
    words = "requests in flight; default: three batches of files, or 4 lists of lines"
    predict.add_argument("--in-flight", type=number(int, 1), metavar="N", help=words)

    words = "print the vector of each text, one per line, as JSON"
    examples = ('embed sentence-embedding "A text."', "embed sentence-embedding --option input_type=query < texts.txt")
    embed = _command(added, commands.embed, words, examples)
    embed.add_argument("text", metavar="TEXT", nargs="*", help="texts; default: the lines of standard input")

    words = "sort documents by how well they answer a query, best first"
    examples = ('rerank reranking "a query" "one text" "another"', 'rerank reranking "a query" --top-n 3 < texts.txt')
    rerank = _command(added, commands.rerank, words, examples)
    rerank.add_argument("query", metavar="QUERY", help="text to search for")
    rerank.add_argument(
        "document", metavar="DOCUMENT", nargs="*", help="documents; default: the lines of standard input"
    )
    rerank.add_argument("--top-n", type=number(int, 1), metavar="N", help="number of documents to print; default: all")

    for command in (predict, embed):
        words = "option of the model, such as top_k=3; may be repeated"
        command.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help=words)
    for command in (predict, embed, rerank):
        _add_timeout(command, "time for a request with its retries")


def _command(added: Added, run: commands.Command, words: str, examples: Sequence[str]) -> Parser:
    name = run.__name__.replace("_", "-")
    description = f"{words[0].upper()}{words[1:]}."
    command: Parser = added.add_parser(name, help=words, description=description)
    command.show_examples(command.prog.removesuffix(name), examples)
    command.set_defaults(run=run)
    if run is not commands.describe:
        command.add_argument("model", metavar="MODEL", help="registered name")
    return command


def _add_timeout(command: Parser, words: str) -> None:
    help_ = f"{words}, such as 120, 120s or 2m; default: %(default)gs"
    command.add_argument("--timeout", type=duration_s, default=TIMEOUT_S, metavar="T", help=help_)


def _add_gateway(command: Parser) -> None:
    words = f"control API of the gateway; default: ${GATEWAY}, or {DEFAULT_GATEWAY} if it serves these nodes"
    command.add_argument("--gateway", default=os.environ.get(GATEWAY) or None, metavar="URL", help=words)


def _add_registration(command: Parser, archive: str, kept: str) -> None:
    group = command.add_argument_group("registration")
    group.add_argument("--archive", metavar="FILE", help=archive)
    words = f"requests per batch; default: {kept}"
    group.add_argument("--batch-size", type=number(int, 1), metavar="N", help=words)
    words = f"time that a batch waits to be filled; default: {kept}"
    group.add_argument("--max-batch-delay", type=number(int, 1), metavar="MS", help=words)
    words = "folder of TorchServe's logs, which contain why a worker failed; default: %(default)s"
    group.add_argument("--logs", type=Path, default=HOME / "logs", metavar="FOLDER", help=words)


def _version(text: str) -> str:
    try:
        check_name(text)
    except InvalidPayload as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def _option(text: str) -> tuple[str, object]:
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    if printable(value) != value:
        raise argparse.ArgumentTypeError(f"{name}: the value is not UTF-8")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
