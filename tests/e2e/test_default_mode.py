"""A plain archive, registered as people do: adaptive, and what one worker means for who asks for more."""

import time
from collections.abc import Callable, Iterator

import pytest
import requests

from deploy.server import Server
from tests.e2e.conftest import STARTUP_TIMEOUT_S, Registrations, send, send_together, url
from torchserve_client.worker_log import WorkerLog

NAME = "sentence-embedding"
TEXTS = (b"Guten Tag, wie geht es Ihnen heute?", b"The ferry leaves at seven in the morning.")
TEXT = TEXTS[0]


@pytest.fixture
def register(
    server: Server, registrations: Registrations, archive: Callable[..., str]
) -> Iterator[Callable[[str], dict[str, object]]]:
    """Register it as a query says; returns what TorchServe says of it."""
    file = archive(NAME)
    registrations.clear()

    def post(query: str) -> dict[str, object]:
        answer = requests.post(f"{server.settings.management_url}/models?url={file}&{query}", timeout=60)
        assert answer.status_code in (200, 202), answer.text
        server.management.wait_ready(NAME, timeout_s=STARTUP_TIMEOUT_S)
        return dict(server.management.describe(NAME))

    yield post
    registrations.clear()


def test_plain_registration_has_one_adaptive_worker_with_the_archives_own_window(
    server: Server, register: Callable[[str], dict[str, object]]
) -> None:
    described = register("initial_workers=4&synchronous=true")
    assert [described[name] for name in ("batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")] == [64, 1, 1, 1]
    metadata = requests.get(url(server, NAME), headers={"X-Model-Metadata": "1"}, timeout=60).json()
    assert metadata["mode"] == "adaptive"
    explained = requests.post(url(server, NAME).replace("predictions", "explanations"), data=TEXT, timeout=60)
    assert (explained.status_code, len(explained.json())) == (200, 384)


def test_registration_of_classic_days_answers_everybody(
    server: Server, register: Callable[[str], dict[str, object]]
) -> None:
    described = register("batch_size=8&max_batch_delay=50&initial_workers=1")
    assert (described["batchSize"], described["maxBatchDelay"]) == (8, 50)
    alone = [send(server, NAME, text).body for text in TEXTS]
    answers = send_together(server, NAME, list(TEXTS) * 10)
    assert [answer.status for answer in answers] == [200] * 20
    for answer, expected in zip(answers, alone * 10, strict=True):
        assert answer.body == pytest.approx(expected, abs=0.02)


def test_scaled_to_two_the_second_does_not_load_and_a_client_alone_is_answered(
    server: Server, register: Callable[[str], dict[str, object]]
) -> None:
    register("initial_workers=1")
    log = WorkerLog(server.logs / "model_log.log", NAME)
    scaled = f"{server.settings.management_url}/models/{NAME}"
    requests.put(f"{scaled}?min_worker=2&max_worker=2", timeout=60).raise_for_status()
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    while (reason := log.reason()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "another worker serves this model, and adaptive mode has one" in reason
    for _ in range(3):
        assert send(server, NAME, TEXT).status == 200
    requests.put(f"{scaled}?min_worker=1&max_worker=1", timeout=60).raise_for_status()
    assert send(server, NAME, TEXT).status == 200
