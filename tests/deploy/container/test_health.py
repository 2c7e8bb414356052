"""Whether a node is ready, by what TorchServe says, or does not say, of its models."""

import threading
from typing import Any

import pytest

from deploy.container.health import Health, Watch, health
from tests.deploy.gateway.envoy.harness import wait
from torchserve_client.errors import Unreachable


def described(ready: int, workers: int, timeout_s: int = 120) -> dict[str, Any]:
    return {
        "modelName": "m",
        "modelVersion": "1.0",
        "minWorkers": workers,
        "responseTimeout": timeout_s,
        "workers": [{"status": "READY" if each < ready else "UNLOADING"} for each in range(max(ready, workers))],
    }


@pytest.mark.parametrize(
    ("models", "is_ready", "words"),
    [
        ([], True, "ready"),
        ([described(1, 1), described(2, 2)], True, "ready"),
        ([described(1, 1), described(1, 2)], False, "m 1.0: 1 of 2 workers READY"),
        # Scaled to none it answers nobody.
        ([described(0, 0)], False, "m 1.0: 0 of 1 workers READY"),
    ],
)
def test_node_is_ready_where_all_workers_of_all_models_are(
    models: list[dict[str, Any]], is_ready: bool, words: str
) -> None:
    found = health(models)
    assert (found.is_ready, found.words) == (is_ready, words)


def test_longest_answer_is_that_of_the_slowest_model() -> None:
    assert health([described(1, 1, 30), described(1, 1, 90)]).response_timeout_s == 90


def test_what_was_known_stays_while_torchserve_gives_no_answer_and_nobody_waits_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deploy.container.health.LOOK_S", 0.01)
    asked, answers = threading.Semaphore(0), threading.Event()
    looks = 0

    def look() -> Health:
        nonlocal looks
        looks += 1
        if looks == 1:
            return health([described(1, 1)])
        asked.release()
        if looks == 2:
            raise Unreachable("no answer")
        answers.wait(30)
        return health([described(0, 1)])

    watch = Watch(look)
    assert watch.health.words == "starting"
    watch.start()
    # The second of these stands in the middle of its question.
    assert asked.acquire(timeout=10)
    assert asked.acquire(timeout=10)
    assert watch.health.is_ready
    answers.set()
    wait(lambda: not watch.health.is_ready)
    watch.stop()
