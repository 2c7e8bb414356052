"""The drain of a node whose Envoy does not answer."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy.container import node
from deploy.container.settings import NodeSettings
from deploy.gateway.envoy.process import NoAnswer
from deploy.models import ROOT


def test_node_drains_until_its_envoy_answers_that_nothing_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"NODE_CONFIG": str(ROOT / "config.properties"), "NODE_STATE_DIR": str(tmp_path), "NODE_NOTICE_S": "0"}
    process = node.NodeProcess(NodeSettings.read(given))
    answers = iter([NoAnswer(), 2, NoAnswer(), 0, 0])
    monkeypatch.setattr(process, "_envoy", Mock(**{"statistic.side_effect": answers}))
    monkeypatch.setattr(process, "_check", Mock())
    monkeypatch.setattr(process, "_response_timeout_s", 60.0)
    process._drain()
    assert [*answers] == [0]
    assert capsys.readouterr().out.splitlines() == [
        "node: drains", "node: 1 requests are in flight; at most 60 s", "node: the last response is sent",
    ]  # fmt: skip
