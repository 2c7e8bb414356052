"""The settings of a node in a container, from variables."""

from pathlib import Path

import pytest

from deploy.container.settings import NodeSettings
from handlers.errors import InvalidConfig


def test_variables_replace_defaults() -> None:
    given = {"NODE_CONFIG": "/my.properties", "NODE_PORT": "9085", "NODE_FORWARD_HEADERS": "X-A,X-B"}
    settings = NodeSettings.read(given | {"NODE_NOTICE_S": "2"})
    assert (settings.config, settings.port, settings.forward_headers) == (Path("/my.properties"), 9085, ("X-A", "X-B"))
    assert (settings.model_store, settings.notice_s) == (None, 2.0)


def test_wrong_variable_is_named() -> None:
    with pytest.raises(InvalidConfig, match="environment: port: "):
        NodeSettings.read({"NODE_PORT": "many"})
