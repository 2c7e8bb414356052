import importlib.util
import sys
from pathlib import Path

import pytest

from deploy.lock import pins, without_torch
from deploy.models import ROOT

LOCK = """\
# This file was made by: make lock
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa
nvidia-cublas==13.1 ; sys_platform == 'linux' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
torch==2.13.0 \\
    --hash=sha256:dd
torch-model-archiver==0.12.0 \\
    --hash=sha256:ee
torchvision==0.28.0 \\
    --hash=sha256:ff
"""


def test_lock_pins_give_versions_in_order() -> None:
    assert pins(LOCK, ["torchvision", "torch"]) == ["torchvision==0.28.0", "torch==2.13.0"]


def test_lock_without_torch_keeps_all_but_torch_and_cuda() -> None:
    assert without_torch(LOCK) == (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n"
        "torch-model-archiver==0.12.0 \\\n    --hash=sha256:ee\n"
    )


def test_lock_committed_has_hashes_and_no_index_address() -> None:
    text = (ROOT / "requirements.lock").read_text()
    requirements = [line for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))]
    assert len(requirements) > 50
    assert all(line.endswith("\\") for line in requirements)
    assert "://" not in text
    assert {"torchserve==0.12.0", "torch-model-archiver==0.12.0", "torch==2.13.0", "torchvision==0.28.0"} <= {
        line.split()[0] for line in requirements
    }


def test_lock_committed_has_nothing_that_reports_to_others() -> None:
    # OpenVINO would report each import and each export with it.
    assert "telemetry" not in (ROOT / "requirements.lock").read_text()
    assert importlib.util.find_spec("openvino_telemetry") is None


@pytest.mark.parametrize("package", ["torch", "torchvision", "torchserve", "openvino", "pillow"])
def test_environment_is_the_locked_one(package: str) -> None:
    import importlib.metadata  # noqa: PLC0415

    (pin,) = pins((ROOT / "requirements.lock").read_text(), [package])
    assert importlib.metadata.version(package).partition("+")[0] == pin.split("==")[1]
    assert Path(sys.executable).is_relative_to(ROOT / ".venv")
