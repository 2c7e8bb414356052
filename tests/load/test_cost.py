"""What the generator itself costs, against a server that does nothing. Processor time, so that others hardly matter."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from load.generate.attack import Attack
from load.generate.inputs import Inputs
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Poisson
from load.generate.target import Target
from load.generate.windows import Duration

SERVER = Path(__file__).with_name("empty_server.py")


@pytest.fixture
def url() -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/"
        process.kill()


@pytest.mark.parametrize(
    ("rate_per_s", "body_bytes", "most_percent"),
    # Seen: 2 to 4 % and 38 to 43 % of a core.
    [(60, 100_000, 15), (3000, 2, 90)],
)
def test_generator_keeps_its_rate_on_a_part_of_a_core(
    url: str, rate_per_s: float, body_bytes: int, most_percent: float
) -> None:
    inputs = Inputs.of([bytes(body_bytes)])
    summary = Attack(Target(url), inputs, OpenLoop(Poisson(rate_per_s, seed=1)), Duration(2.0), warm_up_s=0.5).run()
    assert summary.failures == {}
    assert summary.unsent == 0
    assert sum(summary.statuses.values()) == pytest.approx(2.0 * rate_per_s, rel=0.2)
    assert summary.cpu_percent < most_percent
