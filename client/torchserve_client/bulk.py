"""The command `predict`: every input of a folder or file, or of one shard of it, asked for and its answer kept.

--shard, PATH -> inputs -> Answers.match -> requests -> job.run -> Answers, one line on stdout, an exit code
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchserve_client import job
from torchserve_client.answers import ASIDE, Answers
from torchserve_client.client import Client
from torchserve_client.commands import aside, out
from torchserve_client.errors import InvalidPayload, ManagementError
from torchserve_client.futures import FuturesClient
from torchserve_client.inputs import Keys, shown, source
from torchserve_client.management import Management
from torchserve_client.shards import Shard, Sharded


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how much `predict` asks for at a time, and how often it draws."""

    # Batches in flight where each file is a request: one runs, one waits, one comes back.
    batches_in_flight: int = 3
    # Requests in flight: at least so many for models that batch little, at most so many connections to one server.
    least_in_flight: int = 8
    most_in_flight: int = 64
    # Requests in flight where each is a list of lines, which fills a batch by itself.
    lists_in_flight: int = 4
    # Drawings per second: drawing costs the machine that predicts, and so many look smooth.
    drawings_per_s: float = 5


TUNING = Tuning()


def predict(options: argparse.Namespace, management: Management, client: Client, servers: int) -> int:
    """Ask for every file of a folder, or every line of a file, that has no answer yet.

    Args:
        options: those of the command; `out` is the file itself, and `shard` is None or leaves out the others' inputs.
        management: says how much a server takes at a time.
        client: asks.
        servers: how many it asks.
    """
    started_s = time.monotonic()
    asked = dict(options.option)
    keys = Keys(options.model, asked)
    own = _own_names(options.out, options.shard, options.path)
    with Answers.open(options.out) as answers, source(options.path, own) as everything:
        inputs = everything if options.shard is None else Sharded(everything, options.shard)
        count = answers.match(inputs, keys)
        # A shard of few inputs may have none of them, and is done.
        if not (inputs.seen if isinstance(inputs, Sharded) else count):
            raise InvalidPayload(f"{shown(options.path)}: nothing in it to predict")
        in_flight = options.in_flight or servers * _in_flight(management, options.model, options.path)
        with _progress() as progress, FuturesClient(client, in_flight, max_queue_items=job.READY) as futures:
            bar = progress.add_task(options.model, total=count - answers.earlier, failed="")

            def advance(tally: job.Tally, count: int) -> None:
                progress.update(bar, advance=count, failed=f"{tally.failed} failed" if tally.failed else "")

            todo = job.requests(inputs, keys, answers, options.chunk)
            tally = job.run(futures, options.model, todo, answers, options=asked, advance=advance)
    seconds = max(time.monotonic() - started_s, 1e-9)
    earlier = f", {answers.earlier} before" if answers.earlier else ""
    inputs_sent = tally.answered + tally.failed
    rate = f", {inputs_sent / seconds:.1f}/s" if inputs_sent else ""
    out.print(f"{shown(options.out)}: {tally.answered} answered{earlier}, {tally.failed} failed, {seconds:.1f} s{rate}")
    return 1 if tally.failed else 0


def answers_file(out: Path, shard: Shard | None) -> Path:
    """Return the file that `--out` means: in a folder, each shard has its own."""
    return out if shard is None or not out.is_dir() else shard.file(out)


def _own_names(out: Path, shard: Shard | None, folder: Path) -> frozenset[str]:
    """Return the names of the files of answers, those of other shards too, that lie in the folder asked about."""
    own, root = out.resolve(), folder.resolve()
    if not own.is_relative_to(root):
        return frozenset()
    files = {own, own.with_name(own.name + ASIDE)}
    if shard is not None:
        files.update(shard.files(own.parent))
    return frozenset(file.relative_to(root).as_posix() for file in files)


def _in_flight(management: Management, model: str, path: Path) -> int:
    if not path.is_dir():
        return TUNING.lists_in_flight
    try:
        batch_size = int(management.describe(model)["batchSize"])
    except ManagementError:
        # Whoever may predict need not be let near the management API.
        return 2 * TUNING.least_in_flight
    return min(max(TUNING.batches_in_flight * batch_size, TUNING.least_in_flight), TUNING.most_in_flight)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("[red]{task.fields[failed]}"),
        console=aside,
        refresh_per_second=TUNING.drawings_per_s,
        transient=True,
        disable=not aside.is_terminal,
    )
