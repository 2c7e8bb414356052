"""The versions of a rollout that has not ended, in a file of the model store: a repeated command goes on after a kill.

a rollout begins -> .rollout-MODEL.json: the versions that it adds and replaces, with their archives -> it ends, removed
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import Self

from torchserve_client import archives
from torchserve_client.errors import RolloutFailed
from torchserve_client.files import remove, replacing
from torchserve_client.locks import open_locked


@dataclass(frozen=True, slots=True)
class Entry:
    archive: str  # file name in the model store
    identity: str  # `archives.identify` of it; empty if it could not be read
    is_copy: bool = False  # whether a rollout made the archive


@dataclass(slots=True)
class Journal:
    path: Path
    versions: dict[str, Entry] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, store: Path, model: str) -> Iterator[Self]:
        """Yield the journal of a model, and let no other rollout of it run, if the store can be written."""
        path = store / f".rollout-{model}.lock"
        try:
            lock = open_locked(path, RolloutFailed(f"{model}: another rollout runs; repeat this one after it"))
        except OSError:
            yield cls.read(store, model)
            return
        with lock:
            try:
                yield cls.read(store, model)
            finally:
                path.unlink(missing_ok=True)

    @classmethod
    def read(cls, store: Path, model: str) -> Self:
        """Return the journal of a model; empty if its last rollout has ended."""
        journal = cls(store / f".rollout-{model}.json")
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads(journal.path.read_text(encoding="utf-8"))
            journal.versions = {version: Entry(**each) for version, each in found.items()}
        return journal

    def add(self, versions: Mapping[str, Entry]) -> bool:
        """Add versions; return False if the store cannot be written, so that a killed rollout cannot be repeated."""
        self.versions |= versions
        return self._write()

    def forget(self, version: str) -> None:
        """Remove a version that is unregistered, and its archive if it is a copy."""
        if (entry := self.versions.pop(version, None)) is not None and entry.is_copy:
            for path in (self.path.with_name(entry.archive), *self.path.parent.glob(f".{escape(entry.archive)}.*")):
                with suppress(OSError):
                    remove(path)
        self._write()

    def end(self) -> None:
        self.versions = {}
        self._write()

    def knows(self, version: str, archive: Path) -> bool:
        """Return whether an unfinished rollout registered this version from an equal archive."""
        entry = self.versions.get(version)
        return entry is not None and entry.identity == archives.identify(archive) != ""

    def _write(self) -> bool:
        with suppress(OSError):
            if self.versions:
                with replacing(self.path) as new:
                    new.write_text(json.dumps({version: asdict(each) for version, each in self.versions.items()}))
            else:
                self.path.unlink(missing_ok=True)
            return True
        return False
