"""A model's next version takes over while clients keep sending: nothing is refused, nothing is lost.

    register the new version -> READY -> set-default -> drain the old one -> unregister it
        does not become READY: the new version is unregistered, the old one has never stopped

TorchServe resolves a request's version when it arrives, so that from set-default on nothing new reaches the old version
but what names it. Unregistering kills workers where they stand, hence the drain:

    1. it waits a moment, for requests whose version was resolved just before the default changed, to get into the queue
    2. it waits until nothing is left in the old version's queue
    3. it waits until the last batch is out: with one worker, until a request for metadata has come back through the
       queue, since a worker takes it only when its batch is answered; with several, or with continuous batching, for
       responseTimeout, within which TorchServe has answered or replaced a worker
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_client import archives
from torchserve_client.errors import ClientError, LoadFailed, ManagementError, NotReady, RolloutFailed
from torchserve_client.management import POLL_S, Management
from torchserve_client.worker_log import WorkerLog, wait_loaded


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how long a rollout waits."""

    # Seconds after the default has changed: a request whose version was looked up before needs microseconds of one
    # thread of TorchServe's to get into the queue.
    moment_s: float = 1.0
    # Seconds for the old version's queue to empty: five times TorchServe's default of responseTimeout, 120 s.
    drain_timeout_s: float = 600.0


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the new version is to be registered; None keeps what the old one has.

    Attributes:
        batch_size: most requests of a batch.
        max_batch_delay_ms: most ms that a batch waits to be filled.
        initial_workers: number of workers.
        archive: file name in the model store; None takes a copy of the running archive under another version.
    """

    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    initial_workers: int | None = None
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class New:
    """What takes over.

    Attributes:
        archive: in the model store.
        version: the one that it holds.
        is_copy: whether it was made for this.
    """

    archive: Path
    version: str
    is_copy: bool

    def discard(self) -> None:
        """Leave the model store as it was."""
        if self.is_copy:
            archives.remove(self.archive)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Replaces versions of the models of one server.

    Attributes:
        management: the server's management API.
        model_store: folder of the server's archives, as this process sees it.
        logs: folder of the server's logs, likewise.
        drain_timeout_s: most seconds for the old version's queue to empty.
        say: called with one line for each step.
        sleep: waits so many seconds; a test brings one that does not.
    """

    management: Management
    model_store: Path = Path("model_store")
    logs: Path = Path("logs")
    drain_timeout_s: float = TUNING.drain_timeout_s
    say: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep

    def run(self, model: str, wanted: Wanted) -> str:
        """Replace the default version of a model.

        Args:
            model: the model's name.
            wanted: how the new version is to be registered.

        Returns:
            The version that serves now.

        Raises:
            RolloutFailed: the new version did not come up, or the old one did not drain; it says which of them serves.
            ManagementError, InvalidPayload: nothing was changed.
        """
        old = self.management.describe(model)
        new = self.prepare(model, old, wanted, self.management.versions(model))
        try:
            self.register(model, new, old, wanted)
        except BaseException:
            new.discard()
            raise
        self.replace(model, new.version, old)
        self.clean(old)
        return new.version

    def prepare(self, model: str, old: dict[str, Any], wanted: Wanted, taken: Collection[str]) -> New:
        """Find or make the archive to register, in the model store, under a version that is free.

        Args:
            model: the model's name.
            old: the description of the version that serves.
            wanted: how the new version is to be registered.
            taken: versions that are not free.

        Raises:
            RolloutFailed, InvalidPayload: it cannot be had; nothing was changed.
        """
        path = self.model_store / (wanted.archive or str(old["modelUrl"]))
        description = archives.describe(path)
        if wanted.archive is None:
            version = archives.next_version(str(old["modelVersion"]), list(taken))
            return New(archives.reversioned(path, version), version, is_copy=True)
        if description.name != model:
            raise RolloutFailed(f"{path.name} holds {description.name}, not {model}")
        if description.version in taken:
            raise RolloutFailed(
                f"{model}: version {description.version} is registered already; give {path.name} another"
            )
        return New(path, description.version, is_copy=False)

    def replace(self, model: str, version: str, old: dict[str, Any]) -> None:
        """Make a version the default, and retire the one that was.

        Args:
            model: the model's name.
            version: the version that is to serve.
            old: the description of the one that does.
        """
        self.switch(model, version)
        self.retire(model, old)

    def switch(self, model: str, version: str) -> None:
        """Make a version the default."""
        self.management.set_default(model, version)
        self.say(f"{model}: version {version} is the default")

    def retire(self, model: str, old: dict[str, Any]) -> None:
        """Unregister a version that nothing is sent to any more, once it has answered everything.

        Raises:
            RolloutFailed: it did not drain; it stays registered.
        """
        self._drain(model, old)
        self.management.unregister(model, str(old["modelVersion"]))
        self.say(f"{model}: version {old['modelVersion']} is unregistered")

    def clean(self, old: dict[str, Any]) -> None:
        """Remove the archive of a retired version, where a rollout made it; workers have theirs unpacked elsewhere."""
        replaced = self.model_store / str(old["modelUrl"])
        if "@" in replaced.name:
            archives.remove(replaced)

    def register(self, model: str, new: New, old: dict[str, Any], wanted: Wanted) -> None:
        """Register a version beside the old one, and wait until it is READY; unregistered again where it does not.

        Raises:
            RolloutFailed: it does not come up; the old one serves on.
            ManagementError: the server refused.
        """
        version = new.version
        log = WorkerLog(self.logs / "model_log.log", model, version)
        workers = wanted.initial_workers or max(1, int(old["minWorkers"]))
        batch_size = wanted.batch_size or int(old["batchSize"])
        max_batch_delay_ms = wanted.max_batch_delay_ms or int(old["maxBatchDelay"])
        self.management.register(
            new.archive.name,
            batch_size=batch_size,
            max_batch_delay_ms=max_batch_delay_ms,
            initial_workers=workers,
            model_name=model,
        )
        self.say(
            f"{model}: version {version} is registered, batch_size {batch_size}, "
            f"max_batch_delay {max_batch_delay_ms} ms, {workers} worker{'s' if workers > 1 else ''}"
        )
        try:
            wait_loaded(self.management, model, log, version)
        except (LoadFailed, NotReady) as error:
            self._unregister(model, version)
            raise RolloutFailed(f"{error.message}; version {old['modelVersion']} serves on") from error
        except BaseException:
            # After Ctrl-C, or when the server went away, a half-started version must not stay behind.
            self._unregister(model, version)
            raise
        self.say(f"{model}: version {version} is ready")

    def _unregister(self, model: str, version: str) -> None:
        try:
            self.management.unregister(model, version)
        except ManagementError as error:
            self.say(f"{model}: version {version} could not be unregistered: {error.message}")

    def _drain(self, model: str, old: dict[str, Any]) -> None:
        """Wait until the old version has answered everything it was asked."""
        version = str(old["modelVersion"])
        self.sleep(TUNING.moment_s)
        deadline = time.monotonic() + self.drain_timeout_s
        while (pending := self._pending(model, version)) > 0:
            if time.monotonic() > deadline:
                raise RolloutFailed(
                    f"{model}: {pending} requests still wait for version {version} after {self.drain_timeout_s:g} s; "
                    "it stays registered, the new version is the default"
                )
            self.sleep(POLL_S)
        response_timeout_s = float(old["responseTimeout"])
        if self._has_one_batch(model, version) and self.management.pass_through_worker(
            model, version, response_timeout_s
        ):
            self.say(f"{model}: version {version} has answered everything")
            return
        self.say(f"{model}: version {version} has an empty queue; its last batches have {response_timeout_s:g} s")
        self.sleep(response_timeout_s)

    def _pending(self, model: str, version: str) -> int:
        return int(self.management.describe(model, version)["jobQueueStatus"]["pendingRequests"])

    def _has_one_batch(self, model: str, version: str) -> bool:
        """Return whether the version runs one batch at a time: one worker, classic batching."""
        old = self.management.describe(model, version)
        try:
            description = archives.describe(self.model_store / str(old["modelUrl"]))
        except ClientError:
            return False
        return len(old["workers"]) == 1 and not description.is_continuous
