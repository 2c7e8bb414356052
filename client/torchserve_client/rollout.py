"""A model's next version takes over on every node while clients keep sending: no request is refused or lost.

    run         registered and READY on all nodes -> default on all -> the old one retired
    try_canary  registered and READY on all nodes -> the gateway sends it a share
    promote     default on all nodes -> the gateway's share ends -> the old one retired
    abort       the gateway's share ends -> the new one retired
    unregister  every version retired

    retired     off the gateway's routes, nothing in flight there -> drained and unregistered on each node

Until a version is READY everywhere nothing else is changed; where one node cannot load it, all are as they were.

Unregistering kills workers where they stand, and requests that came to a node's own port are in no gateway's count,
hence the drain. TorchServe resolves a request's version when the request arrives, so that nothing new reaches the old
version but what names it. A drain waits a moment for requests whose version was resolved just before, then until the
version's queue is empty, then until its worker has answered everything.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchserve_client import archives
from torchserve_client.errors import ClientError, LoadFailed, ManagementError, RolloutFailed
from torchserve_client.gateway import MOMENT_S, Gateway
from torchserve_client.management import POLL_S, Management
from torchserve_client.nodes import Nodes
from torchserve_client.worker_log import WorkerLog, wait_loaded

# Seconds for what a version has to be answered: five times TorchServe's default of responseTimeout, 120 s.
DRAIN_S = 600.0
# Seconds in which the gateway sees what has changed on the nodes; it looks every two.
SEEN_S = 20.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the new version is to be registered; None means what a new archive has, or else what the old version has.

    Attributes:
        batch_size: most requests of a batch.
        max_batch_delay_ms: most ms that a batch waits to be filled.
        archive: file name in the model store; None makes a copy of the running archive under another version.
    """

    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    archive: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """Replaces versions of models on nodes that have one model store.

    Attributes:
        nodes: the servers.
        model_store: folder of the archives, as this process sees it.
        gateway: the gateway in front of the nodes; None where there is none, and a canary cannot be.
        logs: folder of the logs of a node that `nodes` has none of.
        say: called with one line for each step.
        sleep: waits for a number of seconds.
    """

    nodes: Nodes
    model_store: Path = Path("model_store")
    gateway: Gateway | None = None
    logs: Path = Path("logs")
    say: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep

    def run(self, model: str, wanted: Wanted) -> str:
        """Replace the default version of a model; return the version that serves now.

        Args:
            model: the model's name.
            wanted: how the new version is to be registered.

        Raises:
            RolloutFailed: the new version did not come up, or the old one did not drain; it says which of them serves.
            NodesFailed: it says which nodes did not take part.
            ManagementError, InvalidPayload: nothing was changed.
        """
        if self.gateway is not None and self.gateway.canary(model) is not None:
            raise RolloutFailed(f"{model} has a canary: --promote or --abort it first")
        olds = self.nodes.each(lambda management: management.describe(model))
        version, _ = self._register(model, wanted, olds)
        self._set_default(model, version)
        self._retire(model, {name: str(old["modelVersion"]) for name, old in olds.items()})
        return version

    def try_canary(self, model: str, wanted: Wanted, percent: float, header: tuple[str, str] | None) -> str:
        """Register a version beside the one that serves, and send it a share; or change the share of the one there is.

        Args:
            model: the model's name.
            wanted: how it is to be registered; `Wanted()` to change the share alone.
            percent: its share of the requests that name no version, 0 to 100.
            header: name and value; requests that carry it go there, whatever the share.

        Returns:
            The version that gets the share.

        Raises:
            RolloutFailed, NodesFailed, ManagementError: nothing has changed.
        """
        gateway = self._edge()
        canary = gateway.canary(model)
        if canary is not None:
            version = str(canary["version"])
            if wanted != Wanted():
                raise RolloutFailed(f"{model} has a canary, version {version}: --promote or --abort it first")
            kept = canary["header"]
            gateway.set_canary(model, version, percent, header or ((kept[0], kept[1]) if kept else None))
            self.say(f"{model}: version {version} gets {percent:g} %")
            return version
        if wanted == Wanted():
            raise RolloutFailed(f"{model} has no canary: pass --url, --batch-size or --max-batch-delay to try one")
        olds = self.nodes.each(lambda management: management.describe(model))
        version, take_back = self._register(model, wanted, olds)
        try:
            self._once_seen(partial(gateway.set_canary, model, version, percent, header), 404)
        except BaseException:
            take_back()
            raise
        self.say(f"{model}: version {version} gets {percent:g} %; --promote or --abort ends it")
        return version

    def promote(self, model: str) -> str:
        """Give a canary everything, and retire what served; return the version that serves now.

        Raises:
            RolloutFailed: there is no canary, or a node does not have it.
            NodesFailed: it says which nodes did not take part.
        """
        version = self._canary(model)
        olds = self.nodes.each(lambda management: str(management.describe(model)["modelVersion"]))
        taken = self.nodes.each(lambda management: management.versions(model))
        if lacking := [name for name, versions in taken.items() if version not in versions]:
            raise RolloutFailed(f"{model}: {', '.join(lacking)} has no version {version}; nothing has changed")
        self._set_default(model, version)
        self._edge().end_canary(model)
        self.sleep(MOMENT_S)
        self._retire(model, {name: old for name, old in olds.items() if old != version})
        return version

    def abort(self, model: str) -> str:
        """Send a canary nothing more, and retire it; return the version that was tried.

        Raises:
            RolloutFailed: there is no canary.
            NodesFailed: it says where it could not be retired.
        """
        version = self._canary(model)
        self._edge().end_canary(model)
        self.say(f"{model}: version {version} gets nothing more")
        self.sleep(MOMENT_S)
        self._retire(model, dict.fromkeys(self.nodes.by_name, version))
        return version

    def unregister(self, model: str) -> None:
        """Remove every version of a model from every node; only the gateway's requests are waited for.

        Raises:
            NodesFailed: some nodes failed; the others have done it.
        """

        def unregister(name: str, management: Management) -> None:
            default = management.describe(model)["modelVersion"]
            # TorchServe wants the default to go last.
            for version in sorted(management.versions(model), key=lambda version: version == default):
                management.unregister(model, version)
            self._say(name, f"{model}: unregistered")

        with self._withdrawn(model, None):
            self.nodes.each_named(unregister)

    def _register(
        self, model: str, wanted: Wanted, olds: Mapping[str, dict[str, Any]]
    ) -> tuple[str, Callable[[], None]]:
        """Register the new version on every node beside the old one, and wait until it is READY; or take it back.

        Args:
            model: the model's name.
            wanted: how it is to be registered.
            olds: a node's name -> the description of the version that serves there.

        Returns:
            The version, and a function that takes it back.
        """
        taken = self.nodes.each(lambda management: management.versions(model))
        old = next(iter(olds.values()))
        version, archive = self._prepare(model, old, wanted, [each for versions in taken.values() for each in versions])
        registered: list[str] = []
        take_back = partial(self._take_back, model, version, registered, None if wanted.archive else archive)
        try:
            for name, old in olds.items():
                management = self.nodes.by_name[name]
                log = WorkerLog(self.nodes.logs.get(name, self.logs) / "model_log.log", model, version)
                # An adaptive model has one worker, whatever the old one was scaled to.
                description = archives.describe(archive)
                workers = 1 if description.is_continuous else max(1, int(old["minWorkers"]))
                new = description.batch_parameters if wanted.archive else {}
                batch_size = wanted.batch_size or new.get("batchSize") or int(old["batchSize"])
                delay_ms = wanted.max_batch_delay_ms or new.get("maxBatchDelay") or int(old["maxBatchDelay"])
                batch: dict[str, Any] = {"batch_size": batch_size, "max_batch_delay_ms": delay_ms, "is_known": True}
                management.register(archive.name, initial_workers=workers, model_name=model, **batch)
                registered.append(name)
                sizes, delays = _change(old["batchSize"], batch_size), _change(old["maxBatchDelay"], delay_ms)
                words = f"batch_size {sizes}, max_batch_delay {delays} ms, {workers} worker{'s'[: workers > 1]}"
                self._say(name, f"{model}: version {version} is registered, {words}")
                wait_loaded(management, model, log, version)
                self._say(name, f"{model}: version {version} is ready")
        except BaseException as error:
            take_back()
            if isinstance(error, ClientError) and len(olds) > 1:
                raise RolloutFailed(f"{name}: {error.message}; all nodes are as they were") from error
            if isinstance(error, LoadFailed):
                raise RolloutFailed(f"{error.message}; version {old['modelVersion']} serves on") from error
            raise
        return version, take_back

    def _prepare(self, model: str, old: Mapping[str, Any], wanted: Wanted, taken: Sequence[str]) -> tuple[str, Path]:
        """Find or make the archive to register, in the model store, under a version that is free."""
        path = self.model_store / (wanted.archive or str(old["modelUrl"]))
        description = archives.describe(path)
        if wanted.archive is None:
            version = archives.next_version(str(old["modelVersion"]), taken)
            return version, archives.reversioned(path, version)
        if description.name != model:
            raise RolloutFailed(f"{path.name} holds {description.name}, not {model}")
        if (version := description.version) in taken:
            raise RolloutFailed(
                f"{model}: version {version} of {path.name} is already registered: raise `version` of {model} in the "
                f"model list, run ./archive.sh {model}, and repeat the rollout"
            )
        return version, path

    def _take_back(self, model: str, version: str, names: Sequence[str], copy: Path | None) -> None:
        for name in names:
            try:
                self.nodes.by_name[name].unregister(model, version)
            except ManagementError as error:
                self._say(name, f"{model}: version {version} could not be unregistered: {error.message}")
        if copy is not None:
            archives.remove(copy)

    def _set_default(self, model: str, version: str) -> None:
        self.nodes.each(lambda management: management.set_default(model, version))
        self.say(f"{model}: version {version} is the default")

    def _retire(self, model: str, versions: Mapping[str, str]) -> None:
        """Unregister versions that are no default, once they have answered everything.

        Args:
            model: the model's name.
            versions: a node's name -> the version that it is to lose.
        """
        served: set[Path] = set()

        def retire(version: str, name: str, management: Management) -> None:
            if versions.get(name) == version and version in management.versions(model):
                old = management.describe(model, version)
                self._drain(name, model, old)
                management.unregister(model, version)
                self._say(name, f"{model}: version {version} is unregistered")
                served.add(self.model_store / str(old["modelUrl"]))

        for version in sorted(set(versions.values())):
            with self._withdrawn(model, version):
                self.nodes.each_named(partial(retire, version))
        for archive in served:
            # No node needs a copy that an earlier rollout made; workers have unpacked theirs elsewhere.
            if "@" in archive.name:
                archives.remove(archive)

    def _drain(self, name: str, model: str, old: Mapping[str, Any]) -> None:
        """Wait until a version has answered everything it was asked."""
        management, version = self.nodes.by_name[name], str(old["modelVersion"])
        self.sleep(MOMENT_S)

        def is_empty() -> bool:
            return bool(management.describe(model, version)["jobQueueStatus"]["pendingRequests"] == 0)

        if not self._until(is_empty, DRAIN_S):
            raise RolloutFailed(
                f"{model}: requests still wait for version {version} after {DRAIN_S:g} s; it stays registered, the new "
                "version is the default"
            )
        timeout_s = float(old["responseTimeout"])
        if len(old["workers"]) == 1 and self._answered(name, model, old, timeout_s):
            self._say(name, f"{model}: version {version} has answered everything")
        else:
            # TorchServe answers or replaces a worker within this time.
            self._say(name, f"{model}: version {version} has an empty queue; its last batches have {timeout_s:g} s")
            self.sleep(timeout_s)

    def _answered(self, name: str, model: str, old: Mapping[str, Any], timeout_s: float) -> bool:
        """Wait until the one worker of a version has answered everything; return False where that cannot be learnt.

        A classic worker takes a request from the queue when it has answered its batch. An adaptive one takes it at
        once, and answers with the number of requests that it has beside.
        """
        if (inference := self.nodes.inference.get(name)) is None:
            return False
        ends_s, idle = time.monotonic() + timeout_s, 0
        try:
            # Twice: what is answered together with the first is then on its way.
            while idle < 2 and (left_s := ends_s - time.monotonic()) > 0:
                count = inference.in_flight(model, str(old["modelVersion"]), timeout_s=left_s)
                if count is None:
                    return not archives.describe(self.model_store / str(old["modelUrl"])).is_continuous
                idle = idle + 1 if count == 0 else 0
                self.sleep(0 if idle else POLL_S)
        except ClientError:
            return False
        return idle == 2

    @contextmanager
    def _withdrawn(self, model: str, version: str | None) -> Iterator[None]:
        """Keep a version off the gateway's routes, with nothing in flight, while the block unregisters it.

        TorchServe leaves requests of a batch that is being filled unanswered when their model is unregistered. Where
        the block fails, the version is put back. Without a gateway nothing is done. None means all versions.
        """
        if (gateway := self.gateway) is None:
            yield
            return
        named = model if version is None else f"{model}: version {version}"
        try:
            try:
                # 400: the gateway has not seen yet that another version is the default.
                self._once_seen(partial(gateway.withdraw, model, version), 400)
                self.say(f"{named}: the gateway sends no new requests")
                self.sleep(MOMENT_S)
                # The gateway may not know the number for a while: that is not none.
                if not self._until(lambda: gateway.in_flight(model, version) == 0, DRAIN_S):
                    self.say(f"{named}: requests still in flight after {DRAIN_S:g} s")
            except ManagementError as error:
                # 404: the gateway does not have it.
                if error.status != 404:
                    raise
            yield
        except BaseException:
            # It may have been withdrawn even if the answer was lost.
            try:
                gateway.withdraw(model, version, is_withdrawn=False)
                self.say(f"{named}: the gateway sends requests again")
            except ManagementError as error:
                if error.status != 404:
                    self.say(f"{named}: could not be put back on the gateway's routes: {error.message}")
            raise
        # The gateway forgets what is gone when it next looks; now a model that is registered anew is served at once.
        with suppress(ManagementError):
            gateway.withdraw(model, version, is_withdrawn=False)

    def _once_seen(self, call: Callable[[], None], not_seen: int) -> None:
        """Repeat a call while the gateway answers `not_seen`: it has not seen a change on the nodes yet."""
        ends_s = time.monotonic() + SEEN_S
        while True:
            try:
                return call()
            except ManagementError as error:
                if error.status != not_seen or time.monotonic() > ends_s:
                    raise
            self.sleep(POLL_S)

    def _until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Look until it is done, for at most so many seconds; return whether it is."""
        ends_s = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > ends_s:
                return False
            self.sleep(POLL_S)
        return True

    def _canary(self, model: str) -> str:
        if (canary := self._edge().canary(model)) is None:
            raise RolloutFailed(f"{model} has no canary")
        return str(canary["version"])

    def _edge(self) -> Gateway:
        if self.gateway is None:
            raise RolloutFailed("a canary needs the gateway: --gateway URL")
        return self.gateway

    def _say(self, name: str, line: str) -> None:
        """Say a line of a node, with its name where there are several."""
        self.say(line if len(self.nodes.by_name) == 1 else f"{name}: {line}")


def _change(old: Any, new: int) -> str:
    return str(new) if int(old) == new else f"{old} -> {new}"
