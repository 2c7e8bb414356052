"""Who may call, and how often."""

import stat

import pytest

from tests.deploy.gateway.envoy.conftest import ALICE, BOB, CAROL
from tests.deploy.gateway.envoy.harness import Gateway

PATHS = ("/predictions/m", "/v2/models/m/infer", "/v2/models/m", "/summary", "/nothing")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {ALICE}x", ALICE, "Basic YQ=="]
)
def test_requests_without_a_valid_key_are_refused(strict: Gateway, path: str, value: str | None) -> None:
    answer = strict.ask("POST", path, headers={} if value is None else {"Authorization": value})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="gateway"')
    message = "A valid key is needed: Authorization: Bearer KEY."
    expected = (
        {"error": message} if path.startswith("/v2") else {"code": 401, "type": "Unauthorized", "message": message}
    )
    assert answer.json() == expected


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_lets_through_and_goes_no_further(strict: Gateway, scheme: str) -> None:
    told = strict.told("POST", "/predictions/m", headers={"Authorization": f"{scheme} {ALICE}", "X-Client": "carol"})
    assert {"authorization", "x-client"} & told["headers"].keys() == set()


def test_a_key_tells_the_control_process_its_client(strict: Gateway) -> None:
    told = strict.told("GET", "/v2/models/m", headers={**bearer(ALICE), "X-Client": "carol"})
    assert (told["headers"]["x-client"], "authorization" in told["headers"]) == ("alice", False)


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/v2/health/live", "/v2/health/ready"])
def test_open_paths_need_no_key_and_have_no_client(strict: Gateway, path: str) -> None:
    told = strict.told("GET", path, headers={"X-Client": "alice", "Authorization": "Bearer wrong"})
    assert {"authorization", "x-client"} & told["headers"].keys() == set()


def test_management_is_let_through_where_it_is_allowed(strict: Gateway) -> None:
    assert strict.ask("POST", "/v2/repository/index").status_code == 401
    assert strict.told("POST", "/v2/repository/index", headers=bearer(ALICE))["by"] == "control"


def test_grpc_needs_a_key_too(strict: Gateway) -> None:
    assert strict.refused("ModelInfer", b"\x0a\x01m")[0] == 16
    assert strict.refused("ModelInfer", b"\x0a\x01m", authorization="Bearer wrong")[0] == 16
    _, told = strict.call("ModelInfer", b"\x0a\x01m", authorization=f"Bearer {ALICE}")
    assert {"authorization", "x-client"} & told["headers"].keys() == set()
    assert strict.call("ServerReady")[1]["by"] == "control"


def test_a_rate_holds_its_own_client_alone(strict: Gateway) -> None:
    statuses = [strict.ask("POST", "/predictions/m", headers=bearer(BOB)).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    for path in ("/predictions/m", "/v2/models/m"):
        answer = strict.ask("POST", path, headers=bearer(BOB))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "50")
    for key in (ALICE, CAROL):
        assert all(strict.ask("POST", "/predictions/m", headers=bearer(key)).status_code == 200 for _ in range(20))


def test_grpc_beyond_a_rate_is_resource_exhausted(strict: Gateway) -> None:
    for _ in range(2):
        strict.call("ModelInfer", b"\x0a\x01m", authorization=f"Bearer {BOB}")
    assert strict.refused("ModelInfer", b"\x0a\x01m", authorization=f"Bearer {BOB}")[0] == 8


def test_keys_stand_in_no_log_and_files_are_their_owners(strict: Gateway) -> None:
    strict.ask("POST", "/predictions/m", headers=bearer(ALICE))
    strict.ask("POST", f"/predictions/m?key={ALICE}", headers=bearer("wrong-0123456789"))
    for path in strict.run.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0, (path.name, oct(mode))
    assert stat.S_IMODE(strict.run.stat().st_mode) == 0o700
    for name in ("access.log", "envoy.log"):
        text = (strict.run / name).read_text()
        assert not [key for key in (ALICE, BOB, CAROL, "wrong-0123456789") if key in text]
