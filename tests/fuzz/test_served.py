"""A short run against a TorchServe: nothing that is odd about HTTP, forms or bodies is anybody else's affair."""

from collections.abc import Iterator

import pytest

from deploy.server import Server
from tests.fuzz import in_process, served
from tests.fuzz.report import lines
from tests.fuzz.sent import Part, Sent
from tests.fuzz.values import CANARY

TASK, BODIES, SEED = "text_classification", 300, 1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served.serving([TASK]) as running:
        yield running


@pytest.mark.parametrize("mode", in_process.MODES)
def test_served_nothing_that_a_client_sends_is_anybody_elses_affair(server: Server, mode: str) -> None:
    outcome = served.fuzz(server, TASK, mode, SEED, lambda: lambda sent: sent / BODIES)
    assert not lines(outcome, SEED)
    assert outcome.bodies == BODIES


def test_served_form_that_cannot_be_decoded_is_in_no_log(server: Server) -> None:
    name = f"{TASK}-classic"
    server.register(name, name, batch_size=1, max_batch_delay_ms=1, workers=1)
    # Half of it ends within one of the escapes.
    broken = Sent((Part("data", "", f"{CANARY}{'é' * 22}".encode()),), "urlencoded", wire="cut")
    odd = Sent((Part("", "", CANARY.encode()),), "multipart")
    good = Sent((Part("data", "", b"A text."),), "urlencoded")
    try:
        answers = served.Served(server, name).answers([broken, odd, good], decodes=False)
    finally:
        server.management.unregister(name)
    assert [answer.status for answer in answers] == [500, 500, 200]
    logs = {path.name: path.read_text(errors="replace") for path in server.logs.rglob("*") if path.is_file()}
    assert "ErrorDataDecoderException\n" in logs["ts_log.log"]
    assert [name for name, text in logs.items() if CANARY in text] == []
