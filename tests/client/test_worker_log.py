import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from handlers import errors
from tests.tables import table
from torchserve_client import worker_log
from torchserve_client.errors import LoadFailed, NotReady
from torchserve_client.worker_log import WorkerLog, find_reason

IMPORT_CHAIN = [
    "Backend worker process died.",
    "Traceback (most recent call last):",
    '  File "model_loader.py", line 108, in load',
    "    module = importlib.import_module(name)",
    "ModuleNotFoundError: No module named 'scipy'",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    "ModuleNotFoundError: No module named 'ts.torch_handler.image_classification'",
]
INVALID = "Cannot load m: InvalidConfig: handler: archh: unknown"


@table(
    ([], None),
    (["Torch worker started.", "Connection accepted"], None),
    (["Traceback (most recent call last):", "ValueError: of a single batch"], None),
    (IMPORT_CHAIN, "ModuleNotFoundError: No module named 'scipy'"),
    ([INVALID, *IMPORT_CHAIN], INVALID),
    # TorchServe writes a traceback line by line.
    (IMPORT_CHAIN[:4], None),
)
def test_load_error_is_the_first_cause(messages: list[str], reason: str | None) -> None:
    assert find_reason(messages) == reason


def test_worker_log_reads_only_what_is_new_and_of_this_model(tmp_path: Path) -> None:
    assert worker_log.LOAD_FAILED == errors.LOAD_FAILED
    path = tmp_path / "model_log.log"
    line = "2026-01-02T03:04:05,678 [INFO ] W-9000-{}_1.0-stdout MODEL_LOG - Cannot load {}: InvalidConfig: {}\n"
    path.write_text(line.format("resnet-152", "resnet-152", "old"))
    log = WorkerLog(path, "resnet-152")
    assert log.reason() is None
    with path.open("a") as file:
        file.write(line.format("other_model", "other_model", "not ours"))
        assert log.reason() is None
        file.write(line.format("resnet-152", "resnet-152", "new")[:-3])
        file.flush()
        assert log.reason() is None  # half a line
        file.write("ew\n")
    assert log.reason() == "Cannot load resnet-152: InvalidConfig: new"


def test_worker_that_is_never_ready_is_reported_with_the_log_to_read(tmp_path: Path) -> None:
    late = Mock(wait_ready=Mock(side_effect=NotReady("late")), describe=lambda *_: {"startupTimeout": 5})
    (path := tmp_path / "model_log.log").touch()
    for log, words in ((path, str(path)), (tmp_path / "none", "the server's model_log.log")):
        with pytest.raises(LoadFailed, match=rf"m: no ready worker after startupTimeout, 5 s; see {re.escape(words)}$"):
            worker_log.wait_loaded(late, "m", WorkerLog(log, "m"))
