"""The readiness of a node, by TorchServe's descriptions of its models."""

from typing import Any

import pytest

from deploy.container.node import summarize_health


def described(ready: int, workers: int, timeout_s: int = 120) -> dict[str, Any]:
    return {
        "modelName": "m",
        "modelVersion": "1.0",
        "minWorkers": workers,
        "responseTimeout": timeout_s,
        "workers": [{"status": "READY" if each < ready else "UNLOADING"} for each in range(max(ready, workers))],
    }


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "ready"),
        ([described(1, 1, 90), described(2, 2, 30)], "ready"),
        ([described(1, 1), described(1, 2)], "ready"),
        ([described(1, 1), described(0, 2)], "m 1.0: no worker is READY"),
        # Scaled to none it answers no one.
        ([described(0, 0)], "m 1.0: no worker is READY"),
    ],
)
def test_node_is_ready_where_a_worker_of_every_model_is(models: list[dict[str, Any]], words: str) -> None:
    assert summarize_health(models) == (words, max([each["responseTimeout"] for each in models], default=0))
