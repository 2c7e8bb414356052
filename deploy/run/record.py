"""What a node serves, so that it can be served again: TorchServe's own snapshots.

    register, scale, set-default, unregister -> TorchServe writes logs/config/TIME-snapshot.cfg before it answers
    start again: snapshots -> Record.keep -> restore.json -> registered again (deploy.run.restore) -> Record.done

TorchServe is started with its configuration named (-f), so that it never reads a snapshot itself: it would replace the
configuration, and serve nothing at all where one archive is gone. Snapshots begin anew with each start, so what is not
yet restored stands in restore.json until it is.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deploy.run.properties import parse

# A character behind a backslash, as java.util.Properties writes values.
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """One version of a model, as it was registered and scaled.

    Attributes:
        archive: its file in the model store.
        min_workers, max_workers: as it was scaled last.
        is_default: whether requests that name no version are its own.
        response_timeout_s, startup_timeout_s: an archive's own model-config.yaml wins over them.
    """

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


class Record:
    """What one node served when it was seen last."""

    def __init__(self, folder: Path, logs: Path) -> None:
        """Find the record of a node.

        Args:
            folder: the node's own.
            logs: its TorchServe's, whose config/ has the snapshots.
        """
        self._mark = folder / "served"
        self._pending = folder / "restore.json"
        self._snapshots = logs / "config"

    def exists(self) -> bool:
        """Whether the node was started, and not stopped for good since."""
        return self._mark.exists()

    def keep(self) -> list[Registration]:
        """Take over what was served, before a start: it is kept until `done`.

        Returns:
            What is to be restored; nothing where `exists` is false, whatever snapshots lie about.
        """
        found = self.read() if self.exists() else []
        self._mark.parent.mkdir(parents=True, exist_ok=True)
        new = self._pending.with_suffix(".new")
        new.write_text(json.dumps([asdict(each) for each in found], indent=1))
        new.replace(self._pending)
        for path in self._files():
            path.unlink(missing_ok=True)
        self._mark.touch()
        return found

    def read(self) -> list[Registration]:
        """What is not restored yet, and what is served beside it."""
        found = {(each.model, each.version): each for each in self._waiting()}
        for each in self._last():
            found.setdefault((each.model, each.version), each)
        return list(found.values())

    def done(self) -> None:
        """Everything that could be restored is: what TorchServe writes is the record from now on."""
        self._pending.unlink(missing_ok=True)

    def is_done(self) -> bool:
        """Whether nothing waits to be restored."""
        return not self._pending.exists()

    def forget(self) -> None:
        """The node is stopped for good: it starts as the configuration has it."""
        self._mark.unlink(missing_ok=True)
        self.done()
        for path in self._files():
            path.unlink(missing_ok=True)

    def _waiting(self) -> list[Registration]:
        try:
            return [Registration(**each) for each in json.loads(self._pending.read_text())]
        except (OSError, ValueError, TypeError):
            return []

    def _last(self) -> list[Registration]:
        for path in reversed(self._files()):
            found = registrations(path.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                return found
        return []

    def _files(self) -> list[Path]:
        """The snapshots, the oldest first: by when they were written, since their names are local time."""
        if not self._snapshots.is_dir():
            return []
        found = [path for path in self._snapshots.glob("*.cfg") if path.is_file()]
        return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def registrations(snapshot: str) -> list[Registration] | None:
    """Read what a snapshot says; None where it is cut off, as a server killed while it wrote leaves it."""
    try:
        models = json.loads(_unescaped(parse(snapshot)["model_snapshot"]))["models"]
        return list(_registrations(models))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _registrations(models: dict[str, dict[str, dict[str, Any]]]) -> Iterable[Registration]:
    for model, versions in models.items():
        for version, state in versions.items():
            yield Registration(
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


def _unescaped(value: str) -> str:
    return ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else CONTROLS.get(match[2], match[2]), value)
