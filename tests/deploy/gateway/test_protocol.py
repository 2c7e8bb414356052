"""The control process' responses about models, over HTTP and gRPC."""

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.gateway.control.protocol import configuration
from deploy.gateway.state import Fleet, Placement, ServedModel, ServedVersion
from deploy.protocol import deep, messages_pb2
from tests.deploy.gateway.conftest import Scene
from tests.deploy.gateway.envoy.stand_ins import METADATA, described
from tests.handlers.serving import Patch

UNKNOWN = "Request for unknown model: 'x' is not found"


def test_mistakes_are_answered_as_the_protocols_have_it(scene: Scene) -> None:
    """Errors only: tests/e2e/test_conformance.py has the responses, by Triton's clients."""
    version = "Request for unknown model: 'classifier' version 7 is not found; versions: 1.0"
    management = "the model repository is disabled; enable it with management: true in gateway.yaml"
    for method, path, status, document in (
        ("GET", "/v2/models/%7Bx%7D/ready", 404, {"error": UNKNOWN.replace("x", "{x}")}),
        ("GET", "/v2/models/classifier/versions/7", 404, {"error": version}),
        # Envoy has a route for a known model: only requests for a new model arrive here.
        ("POST", "/v2/models/classifier/infer", 503, {"error": "'classifier' version 1.0 is not at ready state"}),
        ("DELETE", "/v2/models/classifier", 404, {"error": "DELETE /v2/models/classifier: unknown route"}),
        ("POST", "/v2/repository/models/classifier/unload", 400, {"error": management}),
        ("GET", "/nowhere", 404, {"error": "Not Found"}),
        ("GET", "/info", 404, {"error": "/info: one model must embed or rerank, or default_models name one"}),
    ):
        assert (path, *scene.ask(method, path)) == (path, status, document)
    for method, body, status, words in (
        ("ModelMetadata", messages_pb2.ModelMetadataRequest(name="x").SerializeToString(), 5, UNKNOWN),
        # An inference for which Envoy has no route.
        ("/predictions/x", b"0" * 2_000_000, 5, UNKNOWN),
        ("/predictions/classifier/9", b"", 5, "version 9"),
        ("/predictions/classifier", b"", 14, "not at ready state"),
        ("ModelMetadata", b"\xff\xff", 3, "the message is not a valid ModelMetadataRequest"),
    ):
        found, said, answered = scene.call(method, body)
        assert (method, found, answered) == (method, status, b"")
        assert words in said


def test_models_are_listed_as_openai_does_under_their_aliases_too(tmp_path: Path) -> None:
    with Scene(tmp_path, aliases={"BAAI/bge-m3": "classifier", "gone": "x"}) as scene:
        status, found = scene.ask("GET", "/v1/models")
        assert (status, found["object"]) == (200, "list")
        assert [each["id"] for each in found["data"]] == ["classifier", "BAAI/bge-m3"]
        assert scene.ask("GET", "/v1/models/BAAI/bge-m3") == (200, found["data"][1])
        status, rejected = scene.ask("GET", "/v1/models/gone")
        kinds = [rejected["error"][name] for name in ("code", "type")]
        assert (status, kinds) == (404, ["model_not_found", "not_found_error"])


def configured(**said: Any) -> dict[str, Any]:
    version = ServedVersion("1.0", {"a": Placement(1, 1, 8, 20, is_default=True)}, {**METADATA, **said})
    return configuration(Fleet(registered={"m": ServedModel("m", {"1.0": version}, "1.0")}), "m")


def test_configuration_is_what_tritons_tools_read() -> None:
    found = configured()
    assert (found["backend"], found["version_policy"], found["max_batch_size"]) == ("torchserve", {"all": {}}, 16)
    assert found["dynamic_batching"] == {"preferred_batch_size": [8], "max_queue_delay_microseconds": 20000}
    assert found["instance_group"] == [{"name": "m", "kind": "KIND_CPU", "count": 1}]
    # A function without declarations: datatype and dimensions are unknown.
    found = configured(inputs=[{"name": "x", "datatype": "ANY", "shape": [-1]}])
    assert found["input"] == [{"name": "x", "data_type": "TYPE_INVALID", "dims": []}]
    # Triton's clients put rows first, so for them the model has no batches.
    found = configured(inputs=[{"name": "x", "datatype": "BF16", "shape": [4, -1], "batch_dim": 1}])
    assert (found["max_batch_size"], found["input"][0]["dims"]) == (0, [4, -1])
    proof = {"measure": "top-1", "agreement": 0.99, "samples": 100, "least": 0.98}
    for config, expected in (
        (found, {"max_batch_size": "16", "batch_dim.x": "1"}),
        (configured(precision="bf16", proofs={"int8": proof}), {"precision": "bf16", "proof.int8": json.dumps(proof)}),
    ):
        assert {name: each["string_value"] for name, each in config["parameters"].items()} == expected


@pytest.mark.builds  # it waits for a node that hangs, and longer than a machine stalls
def test_deep_health_needs_one_node_that_answers_the_models_own_sample(scene: Scene, monkeypatch: Patch) -> None:
    def look() -> tuple[int, Any, bytes]:
        named = b"\x0a\x0aclassifier"  # of grpc.health.v1: the field `service`
        return *scene.ask("GET", "/v2/health/deep"), scene.call("/grpc.health.v1.Health/Check", named)[2]

    serving, not_serving = b"\x08\x01", b"\x08\x02"
    assert look() == (200, {"ready": True}, serving)
    asked = scene.first.seen["/predictions/classifier/1.0"]
    # The result of a moment ago answers other probes.
    assert (asked, look(), scene.first.seen["/predictions/classifier/1.0"]) == (1, (200, {"ready": True}, serving), 1)
    monkeypatch.setattr(deep, "KEPT_S", 0.0)
    scene.first.answers["/predictions/classifier/1.0"] = 500, {}, b""
    problem = "its own sample returned 500"
    assert look() == (200, {"ready": True, "problems": {"classifier on node-1": problem}}, serving)
    scene.second.do = "wait"  # it hangs
    monkeypatch.setattr(deep, "ANSWER_S", 2.0)
    problems = {"classifier on node-1": problem, "classifier on node-2": "its own sample had no answer in 2 s"}
    assert look() == (503, {"ready": False, "problems": problems}, not_serving)
    # A full queue is no reason to restart a node.
    busy = {"code": 503, "type": "ServiceUnavailableException", "message": "Model has no worker"}
    scene.first.answers["/predictions/classifier/1.0"] = 503, {}, json.dumps(busy).encode()
    assert look()[::2] == (200, serving)


def test_ready_means_that_a_worker_of_every_model_answers(scene: Scene) -> None:
    def ready() -> tuple[bool, int]:
        scene.look()
        return scene.gateway.fleet.is_ready, scene.status("/v2/models/classifier/ready")

    assert ready() == (True, 200)
    # https://github.com/grpc/grpc/blob/master/src/proto/grpc/health/v1/health.proto: field 1, SERVING is 1.
    check, service = "/grpc.health.v1.Health/Check", b"inference.GRPCInferenceService"
    for message in (b"", bytes([10, len(service)]) + service):
        assert scene.call(check, message) == (0, "", b"\x08\x01")
    assert scene.call(check, b"\x0a\x01x")[0] == 5
    # An adaptive model with two workers: the second never becomes READY.
    scene.register(described("classifier", workers=2, ready=1))
    assert ready() == (True, 200)
    # A model counts once it was READY: a registration or a rollout takes no gateway out of its balancer.
    loading = {"classifier": [described("classifier")], "other": [described("other", ready=0)]}
    scene.first.models = loading
    assert ready() == (True, 200)
    scene.first.models = {**loading, "other": [described("other")]}
    assert ready() == (True, 200)
    scene.first.models = loading
    assert ready() == (False, 200)
    scene.register(described("classifier", ready=0))
    assert (ready(), scene.call(check)) == ((False, 503), (0, "", b"\x08\x02"))


def test_repository_loads_and_unloads_on_all_nodes(managed: Scene) -> None:
    models = "/v2/repository/models"
    document = [{"name": "classifier", "version": "1.0", "state": "READY", "reason": ""}]
    assert managed.ask("POST", "/v2/repository/index", {"ready": True}) == (200, document)
    # TorchServe removes the default version last.
    managed.register(described("classifier", "1.0"), described("classifier", "2.0"), on_both=False)
    assert managed.ask("POST", f"{models}/classifier/unload")[0] == 200
    assert (managed.first.models, managed.second.models) == ({}, {})
    assert managed.status("/v2/models/classifier") == 404
    assert managed.ask("POST", f"{models}/classifier/unload")[0] == 404
    assert managed.ask("POST", f"{models}/classifier/load")[0] == 200
    assert [list(node.models) for node in (managed.first, managed.second)] == [["classifier"]] * 2
    assert managed.status("/v2/models/classifier/ready") == 200
    assert managed.ask("POST", f"{models}/x/load") == (404, {"error": "no archive x.mar"})
    assert managed.ask("POST", f"{models}/..%2Fx/load")[0] == 400
    assert managed.ask("POST", f"{models}/x/load", {"parameters": {"config": "{}"}})[0] == 400
    managed.second.close()
    status, rejected = managed.ask("POST", f"{models}/classifier/unload")
    words = "1 of 2 nodes failed: node-2: cannot be reached"
    assert (status, rejected["error"].startswith(words), managed.first.models) == (502, True, {})


def test_body_that_is_no_object_or_not_packed_as_it_says_is_rejected(managed: Scene) -> None:
    for body, headers in (
        *((body, {}) for body in (b"{", b"[]", b"[" * 100_000, b"\xff")),
        (b"{}", {"Content-Encoding": "gzip"}),
    ):
        status, document = managed.ask("POST", "/v2/repository/index", data=body, headers=headers)
        assert (status, list(document)) == (400, ["error"]), body[:10]
