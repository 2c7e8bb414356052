"""What `make serve` says of the precision that it serves in."""

import pytest

from deploy.run.development import advice


@pytest.mark.parametrize(("device", "precision"), [("cpu", "bf16"), ("cpu", "int8"), ("cuda", "fp32"), ("cpu", None)])
def test_what_is_served_in_less_than_fp32_or_on_a_gpu_gets_no_advice(device: str, precision: str | None) -> None:
    assert advice("resnet-152", {"device": device, "precision": precision}) is None


def test_what_is_served_in_fp32_is_told_the_command_of_int8() -> None:
    line = advice("resnet-152", {"device": "cpu", "precision": "fp32"})
    assert line is not None and "./archive.sh resnet-152 --precision int8 --calibrate FOLDER" in line
