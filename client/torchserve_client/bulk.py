"""The command `predict`: request an answer for every input of a folder or file, and write it to a file.

    inputs without an answer -> items -> FuturesClient -> items with their outcomes -> Answers -> one line, an exit code

The failure of one request is written as an error, and the next run retries it. A failure of all requests (no server, no
such model) ends the run; the answers until then remain.
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import MofNCompleteColumn, Progress

from torchserve_client.answers import Answers
from torchserve_client.client import Client
from torchserve_client.commands import err, out
from torchserve_client.errors import (
    ClientError,
    InvalidPayload,
    ManagementError,
    NoConnection,
    Rejected,
    ServerFailed,
    TLSFailed,
)
from torchserve_client.futures import FuturesClient
from torchserve_client.inputs import Input, Keys, printable, read_inputs
from torchserve_client.nodes import Nodes
from torchserve_client.payloads import parse_json

LINES = 64  # lines per request: the smallest max_request_items of this project's handlers
JSON_LINES = (".jsonl", ".ndjson")  # the endings of files whose lines are JSON
BATCHES_IN_FLIGHT = 3  # batches in flight if each file is a request: one runs, one waits, one returns
LEAST_IN_FLIGHT = 8  # requests, for models with small batches
MOST_IN_FLIGHT = 64  # connections to one server
LISTS_IN_FLIGHT = 4  # requests in flight if each is a list of lines, which fills a batch by itself
# Requests that wait in this process, so that no thread idles while the next input is read: one, and one in reserve.
READY = 2
# TorchServe's type of a missing or wrong token, with status 400.
NO_TOKEN = "InvalidKeyException"  # noqa: S105


class Item(NamedTuple):
    name: str
    key: str
    payload: Any  # a line as text or JSON, or a file's bytes; the path of an unreadable file


def predict(options: argparse.Namespace, nodes: Nodes, client: Client) -> int:
    started_s = time.monotonic()
    settings = dict(options.option)
    keys = Keys(options.model, settings)
    answered = failed = 0
    with Answers(options.out) as answers:
        own = {answers.path, answers.old_path}
        count = answers.match(read_inputs(options.path, own), keys)
        if not count:
            raise InvalidPayload(f"{printable(options.path)}: contains nothing to predict")
        todo = read_items(read_inputs(options.path, own), keys, answers)
        lines, is_json = (0, False) if options.path.is_dir() else _form_of(options.path, own, client, options.model)
        lines = lines and (getattr(options, "max_items", None) or lines)
        in_flight = options.in_flight or (LISTS_IN_FLIGHT if lines else _in_flight(nodes, options.model))
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        shown = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        with shown as progress, FuturesClient(client, in_flight, max_queue_items=READY) as futures:
            bar = progress.add_task(options.model, total=count - answers.earlier)
            todo = map(_parse, todo) if is_json else todo
            for sent, outcomes in request_items(futures, options.model, todo, lines, settings):
                answers.write([each.name for each in sent], [each.key for each in sent], outcomes)
                errors = sum(isinstance(outcome, ClientError) for outcome in outcomes)
                answered, failed = answered + len(sent) - errors, failed + errors
                words = f"{options.model}, {failed} failed" if failed else options.model
                progress.update(bar, advance=len(sent), description=words)
    seconds = max(time.monotonic() - started_s, 1e-9)
    earlier = f", {answers.earlier} before" if answers.earlier else ""
    rate = f", {(answered + failed) / seconds:.1f}/s" if answered + failed else ""
    out.print(f"{printable(options.out)}: {answered} answered{earlier}, {failed} failed, {seconds:.1f} s{rate}")
    return 1 if failed else 0


def read_items(inputs: Iterable[Input], keys: Keys, answers: Answers) -> Iterator[Item]:
    for each in inputs:
        if answers.has(each.name):
            continue
        try:
            content = each.content()
        except OSError:
            yield Item(each.name, "", Path(each.value))  # the client fails to read it too, and that is its outcome
            continue
        yield Item(each.name, keys.make(content), each.value if isinstance(each.value, str) else content)


def _form_of(path: Path, own: set[Path], client: Client, model: str) -> tuple[int, bool]:
    """Return how many lines a request has, and whether they are JSON: only a model without texts reads rows.txt so."""
    first = next(iter(read_inputs(path, own)))
    document = parse_json(first.content())
    is_named = path.suffix in JSON_LINES
    if document is None or (isinstance(document, str) and not is_named):
        return LINES, is_named
    try:
        known = client.metadata(model)
    except (Rejected, ServerFailed):
        return LINES, is_named
    names = {each.name for each in known.inputs}
    is_object = isinstance(document, dict) and not names.isdisjoint(document)
    is_json = is_named or is_object or any(each.datatype != "BYTES" for each in known.inputs)
    return min(known.max_batch_size or LINES, LINES), is_json


def _parse(item: Item) -> Item:
    """Return an item of a line of JSON; the server refuses a line that is not."""
    document = parse_json(item.payload.encode())
    return item if document is None else item._replace(payload=document)


def request_items(
    client: FuturesClient, model: str, items: Iterable[Item], lines: int, options: Mapping[str, object]
) -> Iterator[tuple[list[Item], list[Any]]]:
    """Send items, `lines` (0: one) per request, and yield the outcomes; an error that all would have is raised."""
    rest = iter(items)
    in_flight: dict[Future[Any], list[Item]] = {}
    while (group := list(islice(rest, lines or 1))) or in_flight:
        if group:
            payloads = [each.payload for each in group]
            in_flight[client.submit(model, payloads if lines else payloads[0], **options)] = group
            if len(in_flight) < client.max_workers + READY:
                continue
        for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
            sent = in_flight.pop(future)
            yield sent, _outcomes(future, len(sent), is_list=bool(lines))


def _outcomes(future: "Future[Any]", count: int, *, is_list: bool) -> list[Any]:
    """Return the outcome of each item of a request: an answer or a ClientError."""
    error = future.exception()
    if error is None:
        answer = future.result()
        if not is_list:
            return [answer.decode(errors="replace") if isinstance(answer, bytes) else answer]
        if isinstance(answer, list) and len(answer) == count:
            return answer
        error = ServerFailed(f"the response to {count} inputs is not a list of {count}", 200, "UnknownAnswer")
    if isinstance(error, OSError) and not isinstance(error, ClientError):
        error = InvalidPayload(f"cannot be read: {error.strerror}")
    if not isinstance(error, ClientError) or isinstance(error, NoConnection | TLSFailed):
        raise error
    if error.status == 404 or error.type == NO_TOKEN:
        raise error
    return [error] * count


def _in_flight(nodes: Nodes, model: str) -> int:
    management, *_ = nodes.by_name.values()
    try:
        batch_size = int(management.describe(model)["batchSize"])
    except ManagementError:
        return 2 * LEAST_IN_FLIGHT  # clients may have no access to the management API
    return min(max(BATCHES_IN_FLIGHT * batch_size, LEAST_IN_FLIGHT), MOST_IN_FLIGHT)
