"""Errors of TorchServe, of handlers and of Envoy, in the form that their clients expect."""

from tests.deploy.gateway.envoy.harness import Gateway

JSON = {"Content-Type": "application/json"}
INFER = b"\x0a\x01m"


def test_torchserves_own_errors_have_our_form_and_none_of_its_words(gateway: Gateway) -> None:
    """tests/e2e/test_gateway.py has those of a form and of a large body."""
    payload = "a secret of the request"
    for node in gateway.nodes:
        body = f'{{\n  "code": 503,\n  "type": "ServiceUnavailableException",\n  "message": "{payload}"\n}}\n'
        node.answers["ServiceUnavailableException"] = (503, JSON, body.encode())
    busy = gateway.ask("POST", "/predictions/m", headers={"X-Do": "ServiceUnavailableException"})
    assert (busy.status_code, list(busy.json())) == (503, ["code", "type", "message"])
    busy_v2 = gateway.ask("POST", "/v2/models/m/infer", headers={"X-Do": "ServiceUnavailableException"})
    assert (busy_v2.status_code, list(busy_v2.json())) == (503, ["error"])
    status, words = gateway.refused("ModelInfer", INFER, x_do="ServiceUnavailableException")
    assert status == 14
    assert payload not in busy.text + busy_v2.text + words


def test_handlers_own_errors_are_left_as_they_are(gateway: Gateway) -> None:
    body = b'{"code": 422, "type": "CorruptInput", "message": "The JPEG data is truncated or broken."}'
    # With the status that a handler chose for gRPC, whatever that of HTTP is.
    own = {"Content-Type": "application/x-protobuf", "X-Grpc-Status": "3", "X-Grpc-Message": "broken"}
    for node in gateway.nodes:
        node.answers["corrupt"], node.answers["own"] = (422, JSON, body), (422, own, b"")
        node.answers["no-status"] = (507, JSON, b"{}")
        node.answers["limited"] = (429, JSON, b"{}")
    answer = gateway.ask("POST", "/predictions/m", headers={"X-Do": "corrupt"})
    assert (answer.status_code, answer.content) == (422, body)
    assert gateway.refused("ModelInfer", INFER, x_do="own") == (3, "broken")
    assert gateway.refused("ModelInfer", INFER, x_do="no-status")[0] == 13
    assert gateway.refused("ModelInfer", INFER, x_do="limited")[0] == 14


def test_calls_that_no_node_can_take_are_unavailable(gateway: Gateway) -> None:
    for path, form in (("/predictions/m", "type"), ("/v2/models/m/infer", "error")):
        answer = gateway.ask("POST", path, headers={"X-Do": "die"})
        assert (answer.status_code, form in answer.json()) == (503, True)
    assert gateway.refused("ModelInfer", INFER, x_do="die")[0] == 14
