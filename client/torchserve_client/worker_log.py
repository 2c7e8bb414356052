"""Why a worker does not come up: the management API says only that it is not READY, TorchServe's log says why.

model_log.log -> lines of one model from now on -> the reason, once a worker has said one
"""

import re
from pathlib import Path

from torchserve_client.errors import LoadFailed, NotReady
from torchserve_client.management import Management

# The beginning of the line in which our handlers log the reason (handlers/errors.py, LOAD_FAILED).
LOAD_FAILED = "Cannot load"

# TorchServe prints so when it finds a worker gone.
DIED = "Backend worker process died"


LINE = re.compile(r"^\S+ \[\w+ *\] W-\d+-(?P<model>.+)_(?P<version>[^_]*)-std(?:out|err) MODEL_LOG - (?P<message>.*)$")


class WorkerLog:
    """Reads what the workers of one model print from now on."""

    def __init__(self, path: Path, model: str, version: str | None = None) -> None:
        """Remember where the log ends."""
        self.path = path
        self._model = model
        self._version = version
        self._offset = path.stat().st_size if path.exists() else 0

    def reason(self) -> str | None:
        """Return why a worker could not load, once one has said so; None until then."""
        if not self.path.exists():
            return None
        with self.path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._offset)
            matches = [match for line in log if (match := LINE.match(line.rstrip("\n")))]
        ours = [match for match in matches if match["model"] == self._model]
        return load_error([match["message"] for match in ours if self._version in (None, match["version"])])


def load_error(messages: list[str]) -> str | None:
    """Find the reason in what a worker printed: our handlers' one line, or the first exception of its last traceback.

    The first exception it is, because TorchServe answers a failed import by looking for a handler of its own, and a
    chain of exceptions is printed with its cause first.
    """
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
    return "the worker died without a word"


def wait_loaded(management: Management, model: str, log: WorkerLog, version: str | None = None) -> None:
    """Wait until the workers are ready, as long as the model's own startupTimeout.

    Raises:
        LoadFailed: a worker failed, or none was ready in time; it has the worker's words, or says where they are.
    """
    timeout_s = float(management.describe(model, version)["startupTimeout"])
    try:
        management.wait_ready(model, timeout_s, version, failure=log.reason)
    except NotReady as error:
        place = f"{log.path} may say" if log.path.exists() else "the server's model_log.log says"
        raise LoadFailed(f"{model}: no ready worker after startupTimeout, {timeout_s:g} s; {place} why") from error
