"""The command `predict`: every input of a folder or file, or of one shard of it, is asked for and its answer kept.

    inputs without an answer -> requests -> FuturesClient -> outcomes -> Answers, Tally -> one line, an exit code

An input is read in its turn and dropped when its outcome is written: only the requests in flight are in memory.

A failure of one request is written as an error, and the next run asks again. One that every request would meet (no
server, no such model) ends the run; the answers until then stay.
"""

import argparse
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchserve_client.answers import ASIDE, Answers
from torchserve_client.client import Client
from torchserve_client.commands import aside, out
from torchserve_client.errors import ClientError, InvalidPayload, ManagementError, NoConnection, ServerFailed, TLSFailed
from torchserve_client.futures import FuturesClient
from torchserve_client.inputs import Input, Keys, Shard, shown, source
from torchserve_client.nodes import Nodes
from torchserve_client.payloads import Typed, media_type

# Batches in flight where each file is a request: one runs, one waits, one returns.
BATCHES_IN_FLIGHT = 3
# Requests in flight: at least so many for models that batch little, at most so many connections to one server.
LEAST_IN_FLIGHT, MOST_IN_FLIGHT = 8, 64
# Requests in flight where each is a list of lines, which fills a batch by itself.
LISTS_IN_FLIGHT = 4
# Requests that are ready beside those at the server, so that no worker waits for this thread: one, and one to spare.
READY = 2
# Drawings per second of the progress bar: drawing costs the machine that predicts, and so many look smooth.
DRAWINGS_PER_S = 5
# TorchServe's name for a missing or wrong token, which it answers with 400.
NO_TOKEN = "InvalidKeyException"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Request:
    """A request that is still to be sent.

    Attributes:
        names, keys: those of its inputs.
        payload: a file's bytes, or a list of lines; the path of a file that cannot be read. A file of arrays may hold
            several rows, and is one request all the same.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]
    payload: Typed | Path | list[str]


@dataclass(slots=True)
class Tally:
    """The number of inputs by their outcome."""

    answered: int = 0
    failed: int = 0


def predict(options: argparse.Namespace, nodes: Nodes, client: Client) -> int:
    """Ask for every file of a folder, or every line of a file, that has no answer yet; return the exit code.

    Args:
        options: those of the command; `out` is the file itself.
        nodes: the first of them says how much a server takes at a time.
        client: sends the requests.
    """
    started_s = time.monotonic()
    asked = dict(options.option)
    keys = Keys(options.model, asked)
    own = _own_names(options.out, options.shard, options.path)
    with Answers(options.out) as answers, source(options.path, own, options.shard) as inputs:
        count = answers.match(inputs, keys)
        # A shard of few inputs may have none of them, and is done.
        if not count and next(iter(replace(inputs, shard=None)), None) is None:
            raise InvalidPayload(f"{shown(options.path)}: nothing in it to predict")
        in_flight = options.in_flight or _in_flight(nodes, options.model, options.path)
        with _progress() as progress, FuturesClient(client, in_flight, max_queue_items=READY) as futures:
            bar = progress.add_task(options.model, total=count - answers.earlier, failed="")

            def advance(tally: Tally, count: int) -> None:
                progress.update(bar, advance=count, failed=f"{tally.failed} failed" if tally.failed else "")

            todo = requests(inputs, keys, answers, options.chunk)
            tally = run(futures, options.model, todo, answers, options=asked, advance=advance)
    seconds = max(time.monotonic() - started_s, 1e-9)
    earlier = f", {answers.earlier} before" if answers.earlier else ""
    inputs_sent = tally.answered + tally.failed
    rate = f", {inputs_sent / seconds:.1f}/s" if inputs_sent else ""
    out.print(f"{shown(options.out)}: {tally.answered} answered{earlier}, {tally.failed} failed, {seconds:.1f} s{rate}")
    return 1 if tally.failed else 0


def requests(inputs: Iterable[Input], keys: Keys, answers: Answers, lines: int) -> Iterator[Request]:
    """Yield the requests that are still to be sent, in order.

    Args:
        inputs: the inputs.
        keys: makes their keys.
        answers: those of earlier runs.
        lines: most lines of a request; a file is a request of its own.
    """
    group: list[tuple[str, str, str]] = []
    for each in inputs:
        try:
            content = each.content()
        except OSError:
            # The client will fail to read it likewise, and that is its outcome.
            yield Request((each.name,), ("",), Path(each.value))
            continue
        key = keys.of(content)
        if answers.has(each.name, key):
            continue
        if isinstance(each.value, Path):
            yield Request((each.name,), (key,), Typed(content, media_type(each.value)))
            continue
        group.append((each.name, key, each.value))
        if len(group) == lines:
            yield _of_lines(group)
            group = []
    if group:
        yield _of_lines(group)


def _of_lines(group: list[tuple[str, str, str]]) -> Request:
    names, keys, texts = zip(*group, strict=True)
    return Request(names, keys, list(texts))


def run(
    client: FuturesClient,
    model: str,
    requests: Iterable[Request],
    answers: Answers,
    *,
    options: Mapping[str, Any],
    advance: Callable[[Tally, int], None],
) -> Tally:
    """Send every request and write its outcome.

    Args:
        client: sends; `max_workers` of its requests are at the server at a time.
        model: the model's name.
        requests: in the order in which they are sent; the next one is taken when there is a place for it.
        answers: the file to which outcomes are written, in the order in which they arrive.
        options: the model's options, the same for every request.
        advance: called after each request with the tally so far and the number of inputs that the request had.

    Returns:
        The tally of all inputs.

    Raises:
        NoConnection: the server went away and did not return within the deadline of a request.
        TLSFailed: a certificate is not trusted.
        Rejected: there is no such model, or the token is wrong.
    """
    tally = Tally()
    done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    in_flight: dict[Future[Any], Request] = {}

    def write_next() -> None:
        future = done.get()
        request = in_flight.pop(future)
        outcomes = _outcomes(future, request)
        answers.write(request.names, request.keys, outcomes)
        failed = sum(isinstance(outcome, ClientError) for outcome in outcomes)
        tally.failed += failed
        tally.answered += len(outcomes) - failed
        advance(tally, len(outcomes))

    for request in requests:
        while len(in_flight) >= client.max_workers + READY:
            write_next()
        future = client.submit(model, request.payload, **options)
        in_flight[future] = request
        future.add_done_callback(done.put)
    while in_flight:
        write_next()
    return tally


def _outcomes(future: "Future[Any]", request: Request) -> list[Any]:
    """Return the outcome of each input of a request: a value or a ClientError."""
    error = future.exception()
    count = len(request.names)
    if error is None:
        answer = future.result()
        if not isinstance(request.payload, list):
            return [answer.decode(errors="replace") if isinstance(answer, bytes) else answer]
        if isinstance(answer, list) and len(answer) == count:
            return answer
        return [ServerFailed(f"the answer to {count} inputs is not a list of {count}", 200, "UnknownAnswer")] * count
    if isinstance(error, OSError) and not isinstance(error, ClientError):
        error = InvalidPayload(f"cannot be read: {error.strerror}")
    if not isinstance(error, ClientError) or isinstance(error, NoConnection | TLSFailed):
        raise error
    if error.status == 404 or error.type == NO_TOKEN:
        raise error
    return [error] * count


def answers_file(out: Path, shard: Shard | None) -> Path:
    """Return the file that `--out` means: in a folder, each shard has its own."""
    return out if shard is None or not out.is_dir() else shard.file(out)


def _own_names(out: Path, shard: Shard | None, folder: Path) -> frozenset[str]:
    """Return the names of the files of answers, those of other shards too, that lie in the folder of inputs."""
    own, root = out.resolve(), folder.resolve()
    if not own.is_relative_to(root):
        return frozenset()
    files = {own}
    if shard is not None:
        files.update(Shard(index, shard.count).file(own.parent) for index in range(shard.count))
    files |= {file.with_name(file.name + ASIDE) for file in files}
    return frozenset(file.relative_to(root).as_posix() for file in files)


def _in_flight(nodes: Nodes, model: str, path: Path) -> int:
    if not path.is_dir():
        return LISTS_IN_FLIGHT
    management, *_ = nodes.by_name.values()
    try:
        batch_size = int(management.describe(model)["batchSize"])
    except ManagementError:
        # Clients may predict without access to the management API.
        return 2 * LEAST_IN_FLIGHT
    return min(max(BATCHES_IN_FLIGHT * batch_size, LEAST_IN_FLIGHT), MOST_IN_FLIGHT)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failed]}"),
        console=aside,
        refresh_per_second=DRAWINGS_PER_S,
        transient=True,
        disable=not aside.is_terminal,
    )
