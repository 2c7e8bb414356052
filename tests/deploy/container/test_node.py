"""A node in a container: its settings from variables, and its readiness by descriptions of its models."""

from pathlib import Path
from typing import Any

import pytest

from deploy.container.node import summarize_health
from deploy.container.settings import NodeSettings
from handlers.errors import InvalidConfig
from tests.tables import table


def test_variables_replace_defaults() -> None:
    given = {"NODE_CONFIG": "/my.properties", "NODE_PORT": "9085", "NODE_FORWARD_HEADERS": "X-A,X-B"}
    settings = NodeSettings.read(given | {"NODE_NOTICE_S": "2"})
    assert (settings.config, settings.port, settings.forward_headers) == (Path("/my.properties"), 9085, ("X-A", "X-B"))
    assert (settings.model_store, settings.notice_s) == (None, 2.0)
    with pytest.raises(InvalidConfig, match="environment: port: "):
        NodeSettings.read({"NODE_PORT": "many"})


def described(ready: int, workers: int, timeout_s: int = 120) -> dict[str, Any]:
    states = [{"status": "READY" if each < ready else "UNLOADING"} for each in range(max(ready, workers))]
    model = {"modelName": "m", "modelVersion": "1.0", "minWorkers": workers}
    return {**model, "responseTimeout": timeout_s, "workers": states}


@table(
    ([], "ready"),
    ([described(1, 1, 90), described(2, 2, 30)], "ready"),
    ([described(1, 1), described(1, 2)], "ready"),
    ([described(1, 1), described(0, 2)], "m 1.0: no worker is READY"),
    # Scaled to none it answers no one.
    ([described(0, 0)], "m 1.0: no worker is READY"),
)
def test_node_is_ready_where_a_worker_of_every_model_is(models: list[dict[str, Any]], words: str) -> None:
    assert summarize_health(models) == (words, max([each["responseTimeout"] for each in models], default=0))
