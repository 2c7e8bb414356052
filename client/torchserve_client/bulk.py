"""The command `predict`: every input of a folder or file is asked for and its answer kept.

    inputs without an answer -> items -> FuturesClient -> items with their outcomes -> Answers -> one line, an exit code

An input is read in its turn and dropped when its outcome is written: only the requests in flight are in memory.

A failure of one request is written as an error, and the next run asks again. One that every request would meet (no
server, no such model) ends the run; the answers until then stay.
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
from torchserve_client.commands import aside, out
from torchserve_client.errors import ClientError, InvalidPayload, ManagementError, NoConnection, ServerFailed, TLSFailed
from torchserve_client.futures import FuturesClient
from torchserve_client.inputs import Input, Keys, inputs_of, shown
from torchserve_client.nodes import Nodes

# Lines of a request: the smallest max_request_items of this project's handlers.
LINES = 64
# Batches in flight where each file is a request: one runs, one waits, one returns.
BATCHES_IN_FLIGHT = 3
LEAST_IN_FLIGHT = 8  # requests, for models that batch little
MOST_IN_FLIGHT = 64  # connections to one server
# Requests in flight where each is a list of lines, which fills a batch by itself.
LISTS_IN_FLIGHT = 4
# Requests that are ready beside those at the server, so that no worker waits for this thread: one, and one to spare.
READY = 2
# TorchServe's name for a missing or wrong token, which it answers with 400.
NO_TOKEN = "InvalidKeyException"  # noqa: S105


class Item(NamedTuple):
    """An input that has no answer yet.

    Attributes:
        name, key: of the input.
        payload: a line, or a file's bytes; the path of a file that cannot be read.
    """

    name: str
    key: str
    payload: str | bytes | Path


def predict(options: argparse.Namespace, nodes: Nodes, client: Client) -> int:
    """Ask for every file of a folder, or every line of a file, that has no answer yet; return the exit code."""
    started_s = time.monotonic()
    asked = dict(options.option)
    keys = Keys(options.model, asked)
    answered = failed = 0
    with Answers(options.out) as answers:
        own = {answers.path, answers.aside}
        count = answers.match(inputs_of(options.path, own), keys)
        if not count:
            raise InvalidPayload(f"{shown(options.path)}: nothing in it to predict")
        todo = items(inputs_of(options.path, own), keys, answers)
        lines = 0 if options.path.is_dir() else LINES
        in_flight = options.in_flight or (LISTS_IN_FLIGHT if lines else _in_flight(nodes, options.model))
        with _progress() as progress, FuturesClient(client, in_flight, max_queue_items=READY) as futures:
            bar = progress.add_task(options.model, total=count - answers.earlier)
            for sent, outcomes in ask(futures, options.model, todo, lines, asked):
                answers.write([each.name for each in sent], [each.key for each in sent], outcomes)
                errors = sum(isinstance(outcome, ClientError) for outcome in outcomes)
                answered, failed = answered + len(sent) - errors, failed + errors
                words = f"{options.model}, {failed} failed" if failed else options.model
                progress.update(bar, advance=len(sent), description=words)
    seconds = max(time.monotonic() - started_s, 1e-9)
    earlier = f", {answers.earlier} before" if answers.earlier else ""
    rate = f", {(answered + failed) / seconds:.1f}/s" if answered + failed else ""
    out.print(f"{shown(options.out)}: {answered} answered{earlier}, {failed} failed, {seconds:.1f} s{rate}")
    return 1 if failed else 0


def items(inputs: Iterable[Input], keys: Keys, answers: Answers) -> Iterator[Item]:
    """Yield the inputs that have no answer, in order."""
    for each in inputs:
        if answers.has(each.name):
            continue
        try:
            content = each.content()
        except OSError:
            # The client will fail to read it likewise, and that is its outcome.
            yield Item(each.name, "", Path(each.value))
            continue
        yield Item(each.name, keys.of(content), each.value if isinstance(each.value, str) else content)


def ask(
    client: FuturesClient, model: str, items: Iterable[Item], lines: int, options: Mapping[str, Any]
) -> Iterator[tuple[list[Item], list[Any]]]:
    """Send items, at most `lines` a request (0: each alone); yield those of each request with their outcomes.

    Raises:
        NoConnection: the server went away and did not return within the deadline of a request.
        TLSFailed: a certificate is not trusted.
        Rejected: there is no such model, or the token is wrong.
    """
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
    """Return the outcome of each item of a request: a value or a ClientError."""
    error = future.exception()
    if error is None:
        answer = future.result()
        if not is_list:
            return [answer.decode(errors="replace") if isinstance(answer, bytes) else answer]
        if isinstance(answer, list) and len(answer) == count:
            return answer
        error = ServerFailed(f"the answer to {count} inputs is not a list of {count}", 200, "UnknownAnswer")
    if isinstance(error, OSError) and not isinstance(error, ClientError):
        error = InvalidPayload(f"cannot be read: {error.strerror}")
    if not isinstance(error, ClientError) or isinstance(error, NoConnection | TLSFailed):
        raise error
    if error.status == 404 or error.type == NO_TOKEN:
        raise error
    return [error] * count


def _in_flight(nodes: Nodes, model: str) -> int:
    """Return how many files are asked for at once."""
    management, *_ = nodes.by_name.values()
    try:
        batch_size = int(management.describe(model)["batchSize"])
    except ManagementError:
        # Clients may predict without access to the management API.
        return 2 * LEAST_IN_FLIGHT
    return min(max(BATCHES_IN_FLIGHT * batch_size, LEAST_IN_FLIGHT), MOST_IN_FLIGHT)


def _progress() -> Progress:
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=aside, transient=True, disable=not aside.is_terminal)
