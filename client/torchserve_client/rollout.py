"""Replace a model's version on every node under traffic, without refusing or losing a request.

    run         register, wait until READY on all nodes -> make it the default -> retire the old version
    try_canary  register, wait until READY on all nodes -> the gateway routes it a share
    promote     make it the default -> end the gateway's share -> retire the old version
    abort       end the gateway's share -> retire the new version
    unregister  retire every version

    retire      stop routing at the gateway, wait for its requests in flight -> drain and unregister on each node

A rollout that was killed is in the model's journal: the next command goes on, or retires what the killed
one left. What retires versions is in torchserve_client.retirement.
"""

from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from torchserve_client import archives
from torchserve_client.errors import ClientError, LoadFailed, ManagementError, RolloutFailed, Unreachable
from torchserve_client.gateway import MOMENT_S, Gateway
from torchserve_client.journal import Entry, Journal
from torchserve_client.management import Management
from torchserve_client.payloads import Json
from torchserve_client.retirement import Retirement, find
from torchserve_client.worker_log import WorkerLog, wait_loaded

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of a new version; None means the new archive's value, or else the old version's."""

    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    archive: str | None = None  # file name in the model store; None copies the running archive as another version


def _alone(
    run: Callable[Concatenate["Rollout", Journal, str, Parameters], Result],
) -> Callable[Concatenate["Rollout", str, Parameters], Result]:
    """Run a command with the model's journal, while no other one of the model runs."""

    @wraps(run)
    def locked(self: "Rollout", model: str, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with Journal.open(self.model_store, model) as journal:
            return run(self, journal, model, *arguments, **options)

    return locked


@dataclass(frozen=True, slots=True)
class Rollout(Retirement):
    """Replaces versions on nodes that share one model store; RolloutFailed names the version that serves."""

    @_alone
    def run(self, journal: Journal, model: str, new: Registration) -> str:
        """Replace the default version of a model; return the new version."""
        if self.gateway is not None and self.gateway.canary(model) is not None:
            raise RolloutFailed(f"{model} has a canary: --promote or --abort it first")
        olds = self.nodes.each(lambda management: management.describe(model))
        version, _ = self._register(model, new, olds, journal)
        if {str(old["modelVersion"]) for old in olds.values()} != {version}:
            self._set_default(model, version)
        self._finish(model, journal)
        return version

    @_alone
    def try_canary(
        self, journal: Journal, model: str, new: Registration, percent: float, header: tuple[str, str] | None
    ) -> str:
        """Register a version beside the default one and route it `percent` and `header`; return the version."""
        gateway = self._require_gateway()
        canary = gateway.canary(model)
        if canary is not None:
            version = str(canary["version"])
            if new != Registration() and version not in journal.versions:
                raise RolloutFailed(f"{model} has a canary, version {version}: --promote or --abort it first")
            present = canary["header"]
            gateway.set_canary(model, version, percent, header or ((present[0], present[1]) if present else None))
            if journal.versions:
                self._finish(model, journal, version)
            self.report(f"{model}: version {version} gets {percent:g} %")
            return version
        if new == Registration():
            raise RolloutFailed(f"{model} has no canary: pass --archive, --batch-size or --max-batch-delay to try one")
        olds = self.nodes.each(lambda management: management.describe(model))
        version, undo = self._register(model, new, olds, journal)
        try:
            self._retry_until_noticed(partial(gateway.set_canary, model, version, percent, header), 404)
        except BaseException:
            undo()
            raise
        self._finish(model, journal, version)
        self.report(f"{model}: version {version} gets {percent:g} %; --promote or --abort ends it")
        return version

    @_alone
    def promote(self, journal: Journal, model: str) -> str:
        """Make a canary the default and retire the old version; return the canary's version."""
        if (ended := self._end_killed(model, journal)) is not None:
            return ended
        version = self._read_canary(model)
        olds = self.nodes.each(lambda management: management.describe(model))
        taken = self.nodes.each(lambda management: management.versions(model))
        if lacking := [name for name, versions in taken.items() if version not in versions]:
            raise RolloutFailed(f"{model}: {', '.join(lacking)} has no version {version}; nothing has changed")
        self._note(journal, self._list_entries(olds))
        self._set_default(model, version)
        self._require_gateway().end_canary(model)
        self.sleep(MOMENT_S)
        self._finish(model, journal)
        return version

    @_alone
    def abort(self, journal: Journal, model: str) -> str:
        """Stop routing to a canary and retire it; return its version."""
        if (ended := self._end_killed(model, journal)) is not None:
            return ended
        version = self._read_canary(model)
        olds = self.nodes.each(lambda management: management.describe(model))
        if any(str(old["modelVersion"]) == version for old in olds.values()):
            raise RolloutFailed(f"{model}: version {version} is the default on a node: a killed --promote; repeat it")
        found = self.nodes.each(lambda management: find(management, model, version))
        self._note(journal, self._list_entries({name: each for name, each in found.items() if each}))
        self._require_gateway().end_canary(model)
        self.report(f"{model}: version {version} gets no new requests")
        self.sleep(MOMENT_S)
        self._finish(model, journal)
        return version

    @_alone
    def unregister(self, journal: Journal, model: str) -> None:
        """Remove every version of a model from every node, after the gateway's requests in flight."""

        def unregister(name: str, management: Management) -> None:
            default = management.describe(model)["modelVersion"]
            # TorchServe only removes the default version last.
            for version in sorted(management.versions(model), key=lambda version: version == default):
                management.unregister(model, version)
            self._report_node(name, f"{model}: unregistered")

        with self._withdraw(model, None):
            self.nodes.each_named(unregister)
        journal.end()

    def _register(
        self, model: str, new: Registration, olds: Mapping[str, Json], journal: Journal
    ) -> tuple[str, Callable[[], bool]]:
        """Register the new version beside the `olds` on all nodes; return it, and a function that undoes it."""
        taken = self.nodes.each(lambda management: management.versions(model))
        version, archive = self._find_archive(model, olds, new, set[str]().union(*taken.values()), journal)
        defaults = {name: str(old["modelVersion"]) for name, old in olds.items()}
        # A node's name -> whether it has answered the registration, here or in an unfinished rollout.
        registered = {name: True for name in olds if version in taken[name] and version != defaults[name]}
        undo = partial(self._undo, model, version, registered, journal)
        try:
            for name, old in olds.items():
                self._register_on(name, model, old, new, version=version, archive=archive, registered=registered)
        except BaseException as error:
            is_undone = undo()
            if not isinstance(error, ClientError):
                raise
            if not is_undone:
                words = f"the rollout to {version} has not ended: repeat it, or take it back"
            elif len(olds) > 1:
                words = "no node has changed"
            elif isinstance(error, LoadFailed):
                words = f"version {defaults[name]} continues to serve"
            else:
                raise
            raise RolloutFailed(f"{f'{name}: ' if len(olds) > 1 else ''}{error.message}; {words}") from error
        return version, undo

    def _register_on(
        self,
        name: str,
        model: str,
        old: Json,
        new: Registration,
        *,
        version: str,
        archive: Path,
        registered: dict[str, bool],
    ) -> None:
        """Register the version on a node, or go on with it, and wait until it is ready."""
        management = self.nodes.by_name[name]
        log = WorkerLog(self.nodes.logs.get(name, self.logs) / "model_log.log", model, version)
        # An adaptive model has one worker, even if the old version has several.
        description = archives.describe(archive)
        workers = 1 if description.is_continuous else max(1, int(old["minWorkers"]))
        config = description.batch_parameters if new.archive else {}
        batch_size = new.batch_size or config.get("batchSize") or int(old["batchSize"])
        delay_ms = new.max_batch_delay_ms or config.get("maxBatchDelay") or int(old["maxBatchDelay"])
        is_default = version == str(old["modelVersion"])
        if is_default or name in registered:
            # An unfinished rollout has registered it, and may have made it the default.
            described = management.describe(model, version)
            if _has_batch(described, batch_size, delay_ms):
                self._resume(model, version)
                wait_loaded(management, model, log, version)
                self._report_node(name, f"{model}: version {version} is ready, from an unfinished rollout")
                return
            if is_default:
                raise RolloutFailed(f"{model}: version {version} serves, with another batch_size or delay")
            with self._withdraw(model, version):  # on the way back it is the old version, with requests
                self._drain(name, model, described)
                management.unregister(model, version)
        registered[name] = False
        batch: Json = {"batch_size": batch_size, "max_batch_delay_ms": delay_ms, "is_known": True}
        try:
            management.register(archive.name, initial_workers=workers, model_name=model, **batch)
        except ManagementError as error:
            if not isinstance(error, Unreachable):
                del registered[name]
            raise
        registered[name] = True
        sizes, delays = _change(old["batchSize"], batch_size), _change(old["maxBatchDelay"], delay_ms)
        words = f"batch_size {sizes}, max_batch_delay {delays} ms, {workers} worker{'s'[: workers > 1]}"
        self._report_node(name, f"{model}: version {version} is registered, {words}")
        wait_loaded(management, model, log, version)
        self._report_node(name, f"{model}: version {version} is ready")

    def _find_archive(
        self, model: str, olds: Mapping[str, Json], new: Registration, taken: Set[str], journal: Journal
    ) -> tuple[str, Path]:
        """Find or make the archive to register, in the model store, with a free version or an unfinished rollout's."""
        entries, old = self._list_entries(olds), next(iter(olds.values()))
        if new.archive is None:
            running = str(old["modelVersion"])
            path = archives.find_version(self.model_store / str(old["modelUrl"]), running)
            if (version := archives.describe(path).version) != running:
                raise RolloutFailed(f"{path.name} contains version {version} now, not {running}: pass --archive")
            own = archives.read_fingerprint(path)
            if own is not None and self._read_fingerprints(model, running) - {own}:
                problem = f"{path.name} is not the archive that version {running} was registered from"
                raise RolloutFailed(f"{problem}: raise `version`, build it again, and pass --archive")
            unfinished = self._find_unfinished(model, old, new, path, journal)
            version = unfinished or archives.next_version(running, [*taken, *journal.versions])
            copy = archives.name_copy(path, version)
            self._note(journal, {**entries, version: Entry(copy.name, archives.identify(path), is_copy=True)})
            return version, copy if version in taken else archives.copy_as_version(path, version)
        path = self.model_store / new.archive
        description = archives.describe(path)
        if description.name != model:
            raise RolloutFailed(f"{path.name} contains the model {description.name}, not {model}")
        if (version := description.version) in taken and not journal.knows(version, path):
            raise RolloutFailed(
                f"{model}: version {version} of {path.name} is already registered: raise `version` of {model} in the "
                f"model list, build it again, and repeat the rollout"
            )
        self._note(journal, {**entries, version: Entry(path.name, archives.identify(path))})
        return version, path

    def _note(self, journal: Journal, versions: Mapping[str, Entry]) -> None:
        if not journal.add(versions):
            self.report(f"{self.model_store}: not writable; this command cannot be repeated after a kill")

    def _read_fingerprints(self, model: str, version: str) -> set[str | None]:
        """Return the fingerprints of the archives that serve a version, of the nodes that report one."""
        found: set[str | None] = set()
        for inference in self.nodes.inference.values():
            with suppress(ClientError):  # an overloaded node may not answer, and another project's handler fails
                found.add(inference.fingerprint(model, version))
        return found - {None}

    def _find_unfinished(self, model: str, old: Json, new: Registration, path: Path, journal: Journal) -> str | None:
        """Return a copy's version that an unfinished rollout registered with the parameters that are wanted now."""
        batch = new.batch_size or int(old["batchSize"]), new.max_batch_delay_ms or int(old["maxBatchDelay"])
        for version in journal.versions:
            is_copy = journal.versions[version].is_copy and journal.knows(version, path)
            found = self.nodes.each(partial(find, model=model, version=version)) if is_copy else {}
            if any(found.values()) and all(_has_batch(each, *batch) for each in found.values() if each):
                return version
        return None

    def _list_entries(self, olds: Mapping[str, Json]) -> dict[str, Entry]:
        """Return the entries of versions that are described, for the journal."""
        found = {}
        for old in olds.values():
            version = str(old["modelVersion"])
            path = archives.find_version(self.model_store / Path(str(old["modelUrl"])).name, version)
            found[version] = Entry(path.name, archives.identify(path), archives.is_copy(path, version))
        return found

    def _finish(self, model: str, journal: Journal, canary: str | None = None) -> None:
        """Retire the versions of the journal that no node has as its default, and end it."""
        defaults = self.nodes.each(lambda management: str(management.describe(model)["modelVersion"])).values()
        for version in sorted(journal.versions.keys() - {*defaults, canary}):
            self._retire(model, version)
            journal.forget(version)
        journal.end()

    def _end_killed(self, model: str, journal: Journal) -> str | None:
        """End a promotion or an abortion that was killed after the canary's end; return the version that serves."""
        if not journal.versions or self._require_gateway().canary(model) is not None:
            return None
        self._finish(model, journal)
        return next(iter(self.nodes.each(lambda each: str(each.describe(model)["modelVersion"])).values()))

    def _undo(self, model: str, version: str, registered: Mapping[str, bool], journal: Journal) -> bool:
        """Unregister a version and forget it; return False if a node has it, or may have it later."""
        is_undone = True
        for name, is_answered in registered.items():
            try:
                self.nodes.by_name[name].unregister(model, version)
            except ManagementError as error:
                if error.status == 404 and is_answered:
                    continue
                if error.status != 404:
                    self._report_node(name, f"{model}: version {version} could not be unregistered: {error.message}")
                is_undone = False
        try:
            defaults = {str(each.describe(model)["modelVersion"]) for each in self.nodes.by_name.values()}
        except ManagementError:
            return False
        # Otherwise the next rollout goes on with it, or removes it.
        if is_undone := is_undone and version not in defaults:
            journal.forget(version)
            if journal.versions.keys() <= defaults:
                journal.end()
        return is_undone

    def _set_default(self, model: str, version: str) -> None:
        self.nodes.each(lambda management: management.set_default(model, version))
        self.report(f"{model}: version {version} is the default")

    def _read_canary(self, model: str) -> str:
        if (canary := self._require_gateway().canary(model)) is None:
            raise RolloutFailed(f"{model} has no canary")
        return str(canary["version"])

    def _require_gateway(self) -> Gateway:
        if self.gateway is None:
            raise RolloutFailed(
                "a canary needs the gateway of exactly these nodes, and none was found: use --gateway URL"
            )
        return self.gateway


def _has_batch(described: Json, batch_size: int, delay_ms: int) -> bool:
    return (int(described["batchSize"]), int(described["maxBatchDelay"])) == (batch_size, delay_ms)


def _change(old: Any, new: int) -> str:
    return str(new) if int(old) == new else f"{old} -> {new}"
