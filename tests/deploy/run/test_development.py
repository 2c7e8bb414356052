"""What `make serve` says of the processor."""

import pytest

from deploy.run.development import advice


@pytest.mark.parametrize("flags", ["", "avx2 avx512_bf16", "amx_bf16 amx_int8 avx2"])
def test_processors_with_bf16_and_unknown_ones_get_no_advice(flags: str) -> None:
    assert advice("resnet-152", flags) is None


def test_processor_without_bf16_is_told_the_command_of_int8() -> None:
    assert "./archive.sh resnet-152 --precision int8 --calibrate FOLDER" in (advice("resnet-152", "avx avx2") or "")
