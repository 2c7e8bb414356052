"""The choice of the gateway in front of a command's nodes."""

import pytest

from tests.client.conftest import serving
from tests.tables import table
from torchserve_client import gateway as gateway_module
from torchserve_client.cli import main
from torchserve_client.gateway import find_gateway

ONE, TWO = "http://127.0.0.1:1", "http://127.0.0.1:2"


@table(
    ([ONE, TWO], [ONE, TWO], True, True),
    ([ONE], ["http://localhost:1/", TWO], True, True),
    # Its other nodes would continue to serve.
    ([ONE, TWO], [ONE], False, False),
    # Other addresses of these nodes, or another gateway: only --gateway decides.
    (["http://node:1"], [ONE], False, True),
    ([""], [ONE], False, True),
    ([], [ONE], False, True),
)
def test_gateway_is_the_one_in_front_of_these_nodes_alone(
    theirs: list[str], ours: list[str], unnamed: bool, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"name": "n", "state": "up", "is_draining": False, "is_routed": True, "in_flight": 0}
    with serving(lambda *_: [{**node, **({"management": url} if url else {})} for url in theirs]) as url:
        monkeypatch.setattr(gateway_module, "DEFAULT_URL", url)
        assert (find_gateway(ours, None) is not None, find_gateway(ours, url) is not None) == (unnamed, named)


@pytest.mark.parametrize("action", [["--canary", "5", "--batch-size", "4"], ["--promote"], ["--abort"]])
def test_canary_is_not_written_to_the_gateway_of_other_nodes(
    action: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def answer(path: str, *_: object) -> object:
        asked.append(path)
        return [
            {"name": "n", "state": "up", "is_draining": False, "is_routed": True, "in_flight": 0, "management": TWO}
        ]

    with serving(answer) as url:
        monkeypatch.setattr(gateway_module, "DEFAULT_URL", url)
        assert main(["--management-url", ONE, "rollout", "m", *action]) == 1
    assert "a canary needs the gateway of exactly these nodes" in capsys.readouterr().err
    assert asked == ["/control/nodes"]
