"""API keys and rates."""

import stat

import pytest
import requests

from tests.deploy.gateway.envoy.conftest import ALICE, BOB, CAROL, KEY
from tests.deploy.gateway.envoy.harness import Gateway

INFER = b"\x0a\x01m"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("method", "path", "value"),
    [
        *(("POST", "/predictions/m", value) for value in ("Bearer", f"Bearer {ALICE}x", ALICE, f"Basic {ALICE}")),
        *(("POST", path, None) for path in ("/predictions/m/2.0", "/v2/models/m/infer", "/v2/repository/index", "/x")),
        *(("GET", path, None) for path in ("/v2/models/m", "/summary")),
    ],
)
def test_requests_without_a_valid_key_are_refused(strict: Gateway, method: str, path: str, value: str | None) -> None:
    answer = strict.ask(method, path, headers={} if value is None else {"Authorization": value})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="gateway"')
    message = "A valid key is needed: Authorization: Bearer KEY."
    plain = {"code": 401, "type": "Unauthorized", "message": message}
    assert answer.json() == ({"error": message} if path.startswith("/v2") else plain)


def test_a_key_lets_through_and_only_the_control_process_learns_the_client(strict: Gateway) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {ALICE}", "X-Client": "carol"}
        of_node = strict.received("POST", "/predictions/m", headers=headers)
        assert not {"authorization", "x-client"} & of_node["headers"].keys()
    found = strict.received("GET", "/v2/models/m", headers={**KEY, "X-Client": "carol"})
    assert (found["headers"]["x-client"], "authorization" in found["headers"]) == ("alice", False)
    assert strict.received("POST", "/v2/repository/index", headers=KEY)["by"] == "control"


def test_grpc_needs_a_key_but_for_the_servers_health(strict: Gateway) -> None:
    assert strict.refused("ModelInfer", INFER)[0] == 16
    assert strict.refused("ModelInfer", INFER, authorization="Bearer wrong")[0] == 16
    assert strict.refused("ModelMetadata", INFER)[0] == 16
    _, found = strict.call("ModelInfer", INFER, authorization=KEY["Authorization"])
    assert not {"authorization", "x-client"} & found["headers"].keys()
    assert [strict.call(method)[1]["by"] for method in ("ServerLive", "ServerReady")] == ["control"] * 2


def test_a_rate_holds_its_own_client_alone_over_http_and_grpc(strict: Gateway) -> None:
    # Over separate connections, which share the client's bucket.
    url = f"{strict.url}/predictions/m"
    assert [requests.post(url, headers=bearer(BOB), timeout=30).status_code for _ in range(3)] == [200, 200, 429]
    for path in ("/predictions/m", "/v2/models/m"):
        answer = strict.ask("POST", path, headers=bearer(BOB))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "50")
    for key in (ALICE, CAROL):
        assert all(strict.ask("POST", "/predictions/m", headers=bearer(key)).status_code == 200 for _ in range(20))
    authorization = f"Bearer {BOB}"
    for _ in range(2):
        strict.call("ModelInfer", INFER, authorization=authorization)
    assert strict.refused("ModelInfer", INFER, authorization=authorization)[0] == 8


def test_keys_stand_in_no_log_and_files_are_their_owners(strict: Gateway) -> None:
    strict.ask("POST", f"/predictions/m?key={ALICE}", headers={**bearer("wrong-0123456789"), "X-Request-Id": "secret"})
    strict.logged(request_id="secret")
    for path in (strict.run, *strict.run.rglob("*")):
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path.name
    for name in ("access.log", "envoy.log"):
        text = (strict.run / name).read_text()
        assert not [key for key in (ALICE, BOB, CAROL, "wrong-0123456789") if key in text]
