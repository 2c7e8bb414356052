"""Registers the models of a node again after its death, from TorchServe's snapshots.

    register, scale, set-default, unregister -> TorchServe writes logs/config/TIME-snapshot.cfg before it answers
    start: snapshots -> Record.begin -> restore.json -> restore: registered again -> Record.finish

TorchServe is started with a configuration file (-f), so it never reads a snapshot itself: a snapshot would replace the
configuration, and TorchServe would serve nothing if one archive were missing. Each start begins with no snapshots, so
restore.json contains the registrations that are not restored yet. restored.json keeps those of the last start: a power
cut may leave snapshots empty, and null in restore.json then stands for versions that nothing names.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.node import RESTARTING, RESTORE, STARTED, replace_file
from deploy.nodes.run.properties import parse
from deploy.nodes.run.server import Server
from torchserve_client.archives import MANIFEST, describe, find_version, read_fingerprint
from torchserve_client.errors import InvalidPayload, LoadFailed, ManagementError, NotReady
from torchserve_client.worker_log import WorkerLog, wait_loaded

# A character behind a backslash, as java.util.Properties writes values.
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One version of a model, as last registered and scaled; an archive's own timeouts win."""

    model: str
    version: str
    archive: str
    batch_size: int
    max_batch_delay_ms: int
    min_workers: int
    max_workers: int
    is_default: bool
    response_timeout_s: int
    startup_timeout_s: int
    fingerprint: str = field(default="", compare=False)  # of the archive that it was registered from; "" if unknown
    lost: str = field(default="", compare=False)  # why the last start could not restore it


class Record:
    """The registrations of one node, in its folder and in the snapshots of its TorchServe."""

    def __init__(self, local: LocalNode) -> None:
        self._mark = local.folder / STARTED
        self._pending = local.folder / RESTORE
        self._older = local.folder / "restored.json"
        self._snapshots = local.server.logs / "config"
        self._server = local.server
        # Whether snapshots were lost, with more than the change that TorchServe had not confirmed.
        self.is_damaged = False

    def exists(self) -> bool:
        """Return whether the node was started, and not stopped by a command since."""
        return self._mark.exists()

    def begin(self) -> list[Registration]:
        """Before a start, return the registrations to restore, and keep them until `finish`."""
        found = [replace(each, lost="") for each in self._identify()] if self.exists() else []
        for path in (self._pending, self._older):
            replace_file(path, json.dumps([asdict(each) for each in found], indent=1))
        for path in self._files():
            path.unlink(missing_ok=True)
        self._mark.touch()
        return found

    def keep(self) -> None:
        """After a death, keep the registrations with the fingerprints of the archives that TorchServe has unpacked."""
        if self.exists():
            self.finish(self._identify())

    def read(self) -> list[Registration]:
        """Return the registrations that are not restored yet, and those of the last snapshot."""
        found = {(each.model, each.version): each for each in self.read_pending()}
        for each in self._read_last():
            found.setdefault((each.model, each.version), each)
        return list(found.values())

    def read_pending(self) -> list[Registration]:
        return _read(self._pending)

    def finish(self, lost: Sequence[Registration] = ()) -> None:
        """End the restoration; the record keeps `lost` versions with their reason, and snapshots all others."""
        unknown = [None] if self.is_damaged else []
        if lost or unknown:
            replace_file(self._pending, json.dumps([*(asdict(each) for each in lost), *unknown], indent=1))
        else:
            self._pending.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the record of a node that a command stops."""
        for path in (self._mark, self._pending, self._older, self._mark.with_name(RESTARTING), *self._files()):
            path.unlink(missing_ok=True)

    def _read_last(self) -> list[Registration]:
        for number, path in enumerate(reversed(self._files())):
            if (found := parse_snapshot(path.read_text(encoding="utf-8", errors="replace"))) is not None:
                return found
            self.is_damaged = number > 0
        self.is_damaged = bool(self._files())
        return _read(self._older) if self.is_damaged else []

    def _identify(self) -> list[Registration]:
        """Return the registrations, each with the fingerprint of its archive as TorchServe has unpacked it."""
        unpacked = _read_unpacked(self._server.temporary)

        def identify(each: Registration) -> Registration:
            path = _find_archive(self._server, each)
            with suppress(InvalidPayload):
                # The archive may be registered under other names, too.
                if found := unpacked.get((describe(path).name, each.version)):
                    own = read_fingerprint(path)
                    return replace(each, fingerprint=own if own in found else min(found))
            return each

        return [identify(each) for each in self.read()]

    def _files(self) -> list[Path]:
        """Return the snapshots, oldest first, by modification time, since their names contain local time."""
        return sorted(self._snapshots.glob("*.cfg"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def _read(path: Path) -> list[Registration]:
    try:
        # The release before wrote other fields, too.
        names = {each.name for each in fields(Registration)}
        entries = [each for each in json.loads(path.read_text()) if each]
        return [Registration(**{name: each[name] for name in names & each.keys()}) for each in entries]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def parse_snapshot(snapshot: str) -> list[Registration] | None:
    """Parse a snapshot; None if it is incomplete because the server was killed during the write."""

    def unescape(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else CONTROLS.get(match[2], match[2])

    try:
        models = json.loads(ESCAPE.sub(unescape, parse(snapshot)["model_snapshot"]))["models"]
        return [
            Registration(
                model=model,
                version=version,
                archive=str(state["marName"]),
                batch_size=int(state["batchSize"]),
                max_batch_delay_ms=int(state["maxBatchDelay"]),
                min_workers=int(state["minWorkers"]),
                max_workers=int(state["maxWorkers"]),
                is_default=bool(state["defaultVersion"]),
                response_timeout_s=int(state.get("responseTimeout", 120)),
                startup_timeout_s=int(state.get("startupTimeout", 120)),
            )
            for model, versions in models.items()
            for version, state in versions.items()
        ]
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def restore(local: LocalNode, wanted: Sequence[Registration]) -> Iterator[tuple[str, str]]:
    """Register versions again; yield a line for each, and why the node does not have it, or ""."""
    management = local.server.management
    logs = [WorkerLog(local.server.logs / "model_log.log", each.model, each.version) for each in wanted]
    problems = [_register(local, each) for each in wanted]
    for each, problem in zip(wanted, problems, strict=True):
        if each.is_default and problem is None and management.describe(each.model)["modelVersion"] != each.version:
            management.set_default(each.model, each.version)

    def line(each: Registration, problem: str | None, log: WorkerLog) -> tuple[str, str]:
        lost = problem or ""
        if problem is None and each.min_workers > 0:
            try:
                wait_loaded(management, each.model, log, each.version)
            except (LoadFailed, NotReady) as error:
                problem = error.message
        name = f"{local.name}: {each.model} {each.version}"
        if problem is not None:
            return f"{name} is not restored: {problem}", lost
        batch = f"batch_size {each.batch_size}, max_batch_delay {each.max_batch_delay_ms} ms"
        return f"{name}: restored, {batch}, workers {each.min_workers}", ""

    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        yield from pool.map(line, wanted, problems, logs)


def _find_archive(server: Server, wanted: Registration) -> Path:
    return find_version(server.directory / server.settings.model_store / wanted.archive, wanted.version)


def _read_unpacked(temporary: Path) -> Mapping[tuple[str, str], set[str]]:
    """Return the fingerprints of the archives that TorchServe has unpacked, by name and version."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for manifest in temporary.glob(f"models/*/{MANIFEST}"):
        folder = manifest.parents[1]
        with suppress(InvalidPayload):
            described = describe(folder)
            if fingerprint := read_fingerprint(folder):
                found[described.name, described.version].add(fingerprint)
    return found


def _register(local: LocalNode, wanted: Registration) -> str | None:
    """Register one version as it was; return the reason of a failure."""
    management, path = local.server.management, _find_archive(local.server, wanted)
    try:
        if not path.exists():
            return f"{wanted.archive} is missing from the model store"
        if (version := describe(path).version) != wanted.version:
            return f"{wanted.archive} contains version {version} now"
        if wanted.version not in management.versions(wanted.model, is_missing_ok=True):
            if wanted.fingerprint and read_fingerprint(path) != wanted.fingerprint:
                fix = "raise `version` in the model list, or register it again"
                return f"{path.name} is not the archive that version {wanted.version} was registered from: {fix}"
            management.register(
                path.name,
                batch_size=wanted.batch_size,
                max_batch_delay_ms=wanted.max_batch_delay_ms,
                initial_workers=wanted.min_workers,
                model_name=wanted.model,
                response_timeout_s=wanted.response_timeout_s,
                startup_timeout_s=wanted.startup_timeout_s,
                is_known=True,
            )
        described = management.describe(wanted.model, wanted.version)
        if (described["minWorkers"], described["maxWorkers"]) != (wanted.min_workers, wanted.max_workers):
            # An adaptive model that was scaled up returns with the one worker that answers.
            with suppress(InvalidPayload):
                management.scale(wanted.model, wanted.min_workers, wanted.version, most=wanted.max_workers)
    except InvalidPayload as error:
        return error.message
    except ManagementError as error:
        if error.status == 0:
            raise
        return error.message
    return None
