"""What /proc/cpuinfo says, and what is made of it."""

import os

import pytest

from load.bench.machine import Processor, memory_mb, wait_idle

CPUINFO = """\
processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC
flags\t\t: fpu avx2 {flags}
bugs\t\t:

processor\t: 1
model name\t: another
flags\t\t: amx_tile
"""


@pytest.mark.parametrize(
    ("flags", "has_amx", "text"),
    [
        ("avx512_bf16", False, "AMD EPYC, 2 cores, avx512_bf16, no amx"),
        ("amx_bf16 avx512_bf16 amx_tile", True, "AMD EPYC, 2 cores, amx_bf16, amx_tile, avx512_bf16"),
        ("", False, "AMD EPYC, 2 cores, no bf16 instructions, no amx"),
    ],
)
def test_processor_of_cpuinfo_names_its_bf16_instructions(flags: str, has_amx: bool, text: str) -> None:
    processor = Processor.parse(CPUINFO.format(flags=flags), cores=2)
    assert (processor.has_amx, str(processor)) == (has_amx, text)


def test_processor_without_cpuinfo_has_a_name_and_no_amx() -> None:
    processor = Processor.parse("", cores=1)
    assert processor.name
    assert not processor.has_amx


def test_memory_of_this_process_is_between_1_mb_and_100_gb() -> None:
    assert 1 < memory_mb(os.getpid()) < 1e5


@pytest.mark.parametrize(
    ("readings", "timeout_s", "expected"),
    [([3.0], 60, 3.0), ([90.0, 40.0, 10.0], 60, 10.0), ([90.0], 0, 90.0)],
)
def test_wait_idle_returns_once_idle_or_late(
    readings: list[float], timeout_s: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining = iter(readings)
    monkeypatch.setattr("psutil.cpu_percent", lambda _interval: next(remaining))
    assert wait_idle(10, timeout_s) == expected
    assert not list(remaining)
