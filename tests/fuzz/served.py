"""A TorchServe with small models, and requests that it gets over HTTP, several at once.

weights of a few kilobytes -> Recipe -> model store -> started server -> a model registered -> Served, a Target
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import psutil
import yaml

from deploy.archive import Recipe
from deploy.models import Model, model
from deploy.sandbox import started
from deploy.server import Server
from tests import tiny_models, tiny_seq2seq
from tests.fuzz.archives import ARCHIVES
from tests.fuzz.checks import CANARIES, CUT_OFF, Received
from tests.fuzz.child import no_note
from tests.fuzz.in_process import ANSWER_TIMEOUT_S, MODES, SCHEDULING, WINDOW
from tests.fuzz.kinds import KINDS
from tests.fuzz.outcome import Finding, Outcome, Usage
from tests.fuzz.run import Fuzzer, Gone, batches_from
from tests.fuzz.sent import Sent, http
from torchserve_client.management import ManagementError

# Long enough for all requests of a batch to come before it is formed.
MAX_BATCH_DELAY_MS = 15
READY_TIMEOUT_S = 90.0
SETTINGS = {"responseTimeout": 30, "startupTimeout": 90, "jobQueueSize": 64}
# A network small enough to export and run in no time; its answers need not mean anything.
NETWORK = {"arch": "squeezenet1_1", "resize_size": 68, "crop_size": 64}
LABELS = ("bad", "fair", "good")


class WorkerEnded(Exception):
    """The process that answered is not there any more."""


def weights(task: str, folder: Path) -> str | None:
    """Write a checkpoint for a task, or say what there is instead.

    Args:
        task: its name.
        folder: an empty one.
    """
    if task == "image_classification":
        return "random"
    if task == "language_id":
        return None
    if task == "translation":
        return str(tiny_seq2seq.m2m100(folder))
    if task == "tokenization":
        return str(tiny_models.checkpoint(folder, "bert", "sentence_embedding"))
    labels = LABELS if task == "text_classification" else tiny_models.LABELS
    return str(tiny_models.checkpoint(folder, "bert", task, labels))


def build(task: str, work: Path, store: Path) -> None:
    """Make an archive of a task for each mode.

    Args:
        task: its name; archives are called like it and the mode.
        work: for what they are made of.
        store: the model store.
    """
    checkpoint = work / task
    checkpoint.mkdir()
    chosen = weights(task, checkpoint)
    listed = model("language-id").weights if chosen is None else {}
    for mode in MODES:
        folder = work / f"{task}-{mode}"
        folder.mkdir()
        settings = {**ARCHIVES[task].settings, **(NETWORK if task == "image_classification" else {})}
        is_adaptive = mode == "adaptive"
        config = {**SETTINGS, "minWorkers": 1, "maxWorkers": 1, "continuousBatching": is_adaptive, "handler": settings}
        if is_adaptive:
            settings["scheduling"] = SCHEDULING
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))
        entry = Model(f"{task}-{mode}", task, "1.0", folder, dict(listed))
        Recipe(entry, chosen, "auto", "no-archive", store).build()


def ask(address: SplitResult, sent: Sent) -> Received:
    """Send one request over a connection of its own, odd as it may be, and read what comes.

    Args:
        address: of what is asked, its path included.
        sent: the request.
    """
    headers, body = http(sent)
    begun = time.perf_counter()
    connection = HTTPConnection(address.hostname or "", address.port, timeout=ANSWER_TIMEOUT_S)
    try:
        method = sent.wire if sent.wire in ("GET", "PUT") else "POST"
        connection.putrequest(method, address.path, skip_accept_encoding=True)
        is_chunked = sent.wire == "chunked"
        length = {"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(len(body))}
        for name, value in {**headers, **length}.items():
            connection.putheader(name, value.encode("utf-8", "replace"))
        connection.endheaders(body, encode_chunked=is_chunked)
        response = connection.getresponse()
        received = response.read()
        given = dict(response.getheaders())
    except (ConnectionResetError, BrokenPipeError):
        return Received(CUT_OFF, "", {}, b"", time.perf_counter() - begun)
    finally:
        connection.close()
    seconds = time.perf_counter() - begun
    return Received(response.status, given.get("content-type", ""), given, received, seconds)


class Served:
    """One model of a server."""

    is_served = True

    def __init__(self, server: Server, name: str) -> None:
        """Expect a registered model.

        Args:
            server: a running one.
            name: of the model; it ends in its mode.
        """
        self.is_adaptive = name.endswith("adaptive")
        self._server, self._name = server, name
        self._address = urlsplit(f"{server.settings.inference_url}/predictions/{name}")
        self._process = self._worker()
        self._pool = ThreadPoolExecutor(WINDOW, "client")

    def answers(self, batch: Sequence[Sent], *, decodes: bool) -> list[Received]:
        """See `Target`; whether TorchServe decodes is the server's own setting.

        Raises:
            WorkerEnded: another process has taken the worker's place.
            Gone: the server is not there any more.
        """
        try:
            return list(self._pool.map(self._answer, batch))
        except OSError as error:
            if self._server.pid() is None:
                raise Gone(self._name) from error
            raise
        finally:
            if not self._process.is_running():
                self._process = self._worker()
                raise WorkerEnded(self._name)

    def usage(self) -> Usage:
        """What the worker's process holds."""
        return Usage.of(self._process)

    def _answer(self, sent: Sent) -> Received:
        return ask(self._address, sent)

    def _worker(self) -> psutil.Process:
        """Find the worker's process, once it answers."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        try:
            while not self._server.management.is_ready(self._name):
                if time.monotonic() > deadline:
                    raise Gone(self._name)
                time.sleep(0.2)
            (worker,) = self._server.management.describe(self._name)["workers"]
        except ManagementError as error:
            raise Gone(self._name) from error
        return psutil.Process(int(worker["pid"]))


@contextmanager
def serving(tasks: Sequence[str]) -> Iterator[Server]:
    """A server whose model store has the tasks in both modes; nothing is registered."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        store, work = Path(folder) / "model_store", Path(folder) / "work"
        store.mkdir()
        work.mkdir()
        for task in tasks:
            build(task, work, store)
        with started(store) as server:
            yield server


def fuzz(server: Server, task: str, mode: str, seed: int, until: Callable[[], Callable[[float], float]]) -> Outcome:
    """Register a model, fuzz it, and look through the logs."""
    name = f"{task}-{mode}"
    server.register(name, name, batch_size=WINDOW, max_batch_delay_ms=MAX_BATCH_DELAY_MS, workers=1)
    try:
        fuzzer = Fuzzer(KINDS[task], Served(server, name), seed, f"served, {mode}", no_note)
        outcome = fuzzer.run(batches_from(0), until())
    finally:
        with suppress(ManagementError):
            server.management.unregister(name)
    for path in sorted(path for path in server.logs.rglob("*") if path.is_file()):
        if CANARIES.search(path.read_text(errors="replace")):
            outcome.findings.append(Finding(0, f"a payload stands in {path.name}"))
    return outcome
