"""What `make serve` says of the precision that it serves in."""

import pytest

from deploy.run.summary import advise
from torchserve_client.metadata import Metadata

OPENVINO, TORCH = "torchserve_openvino", "torchserve_torch"


def served(platform: str, precision: str) -> Metadata:
    return Metadata("resnet-152", "1.0", platform, (), (), 64, precision)


@pytest.mark.parametrize(
    ("platform", "precision"), [(OPENVINO, "bf16"), (OPENVINO, "int8"), (TORCH, "fp32"), (OPENVINO, "")]
)
def test_what_is_served_in_less_than_fp32_or_by_torch_gets_no_advice(platform: str, precision: str) -> None:
    assert advise(served(platform, precision)) is None


def test_what_is_served_in_fp32_is_told_the_command_of_int8() -> None:
    line = advise(served(OPENVINO, "fp32"))
    assert line is not None and "./archive.sh resnet-152 --precision int8 --calibrate FOLDER" in line
