import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deploy.models import ROOT
from handlers.continuous.only_worker import _claims, claim
from handlers.errors import InvalidConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")

OTHER = """
import sys
from handlers.continuous.only_worker import claim
claim(sys.argv[1], 0.0)
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def release_claims() -> Iterator[None]:
    yield
    while _claims:
        _claims.popitem()[1].close()


def start_other(name: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def test_name_that_another_process_has_is_refused_and_is_free_when_that_has_ended() -> None:
    name = f"test {os.getpid()} m 1.0"
    with start_other(name) as process:
        with pytest.raises(InvalidConfig, match="another worker serves this model"):
            claim(name, 0.0)
        claim(f"{name}-other", 0.0)
        process.kill()
    claim(name, 60.0)
    claim(name, 0.0)
