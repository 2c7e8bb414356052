import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.lock import beyond, pins, without_torch
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


def test_lock_beyond_another_has_what_that_has_not_and_its_own_first_lines() -> None:
    more = "ray==2.60.0 \\\n    --hash=sha256:00\n"
    whole = LOCK.replace("make lock", "make lock-extras").replace("torch==", more + "torch==", 1)
    assert beyond(LOCK, whole) == "# This file was made by: make lock-extras\n" + more
    with pytest.raises(ValueError, match=r"numpy: 2\.5\.0 is not the version"):
        beyond(LOCK, whole.replace("numpy==2.4.6", "numpy==2.5.0"))


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "extras").glob("*.lock")), ids=lambda path: path.stem)
def test_lock_of_an_extra_has_hashes_and_nothing_of_the_environment(path: Path) -> None:
    text, base = path.read_text(), (ROOT / "requirements.lock").read_text()
    first = [line for line in text.splitlines() if "==" in line and not line.startswith(("#", " "))]
    assert first
    assert all(line.endswith("\\") for line in first)
    assert text.count("--hash=sha256:") >= len(first)
    assert "://" not in text
    # Both together resolve to what each says alone.
    assert beyond(base, text) == text
    assert {name.partition("[")[0] for name in _extra(path.stem)} <= {line.partition("==")[0] for line in first}
    assert not any(name.partition("==")[0] == path.stem for name in base.splitlines())


def _extra(name: str) -> set[str]:
    """The requirements of an extra, without their versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split("[<>=~!]", each)[0] for each in project["optional-dependencies"][name]}


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
