"""The reason why a worker does not start: TorchServe's log contains it, the management API does not.

model_log.log -> new lines of one model -> the reason, when a worker has logged one
"""

import re
from pathlib import Path

from torchserve_client.errors import LoadFailed, NotReady
from torchserve_client.management import Management

# Prefix of the line in which our handlers log the reason (handlers/errors.py, LOAD_FAILED).
LOAD_FAILED = "Cannot load"
DIED = "Backend worker process died"  # TorchServe's message about a worker that has ended
LINE = re.compile(r"^\S+ \[\w+ *\] W-\d+-(?P<model>.+)_(?P<version>[^_]*)-std(?:out|err) MODEL_LOG - (?P<message>.*)\n")


class WorkerLog:
    """The new lines of one model's workers."""

    def __init__(self, path: Path, model: str, version: str | None = None) -> None:
        """Remember the end of the log."""
        self.path = path
        self._model = model
        self._version = version
        self._offset = path.stat().st_size if path.exists() else 0

    def reason(self) -> str | None:
        if not self.path.exists():
            return None
        with self.path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._offset)
            matches = [match for line in log if (match := LINE.match(line))]
        ours = [match for match in matches if match["model"] == self._model]
        return find_reason([match["message"] for match in ours if self._version in (None, match["version"])])


def find_reason(messages: list[str]) -> str | None:
    """Find our handlers' one line in a log, or the first exception: later ones come from TorchServe's own try."""
    for message in messages:
        if message.startswith(LOAD_FAILED):
            return message
    if not any(DIED in message for message in messages):
        return None
    is_inside = False
    for message in messages:
        if message.startswith("Traceback "):
            is_inside = True
        elif is_inside and message and not message.startswith(" "):
            return message
    return None  # TorchServe is still writing the traceback


def wait_loaded(management: Management, model: str, log: WorkerLog, version: str | None = None) -> None:
    """Wait until the workers are ready, at most the model's startupTimeout; raise LoadFailed with the reason."""
    timeout_s = float(management.describe(model, version)["startupTimeout"])
    try:
        management.wait_ready(model, timeout_s, version, failure=log.reason)
    except NotReady as error:
        path = log.path if log.path.exists() else "the server's model_log.log"
        raise LoadFailed(f"{model}: no ready worker after startupTimeout, {timeout_s:g} s; see {path}") from error
