"""The control process' routes, over real sockets to stand-ins of two nodes."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from aiohttp import web
from google.protobuf.json_format import MessageToDict

from deploy.gateway.control.app import control_app, metrics_app, serve
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.envoy.process import Traffic
from deploy.gateway.settings import CanaryRequest, Settings
from deploy.gateway.state import Canary, Fleet
from handlers.protocol.grpc_messages import CLASSES
from tests.deploy.gateway.stand_in import METADATA, StandIn, described, until
from torchserve_client.version import VERSION

REQUESTS = 'handler_requests_total{{ModelName="classifier",ModelVersion="1.0",Outcome="success",}} {}\n'


class RecordedEdge:
    """Stands where Envoy is: keeps what it was told."""

    def __init__(self) -> None:
        self.fleets: list[Fleet] = []
        self.is_running = True
        self.in_flight: dict[str, dict[str, int]] = {}

    def write(self, settings: Settings, fleet: Fleet) -> None:
        self.fleets.append(fleet)

    def traffic(self) -> Mapping[str, Traffic]:
        if not self.is_running:
            raise ConnectionError
        return {"node-1": Traffic(3, True)}

    def requests(self) -> Mapping[str, Mapping[str, int]]:
        if not self.is_running:
            raise ConnectionError
        return self.in_flight

    def prometheus(self) -> str:
        if not self.is_running:
            raise ConnectionError
        return "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n"


class Scene:
    """A gateway over two stand-ins that both serve `classifier`, and a client of it."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self.run, self.settings = run, settings
        self.edge = RecordedEdge()

    async def __aenter__(self) -> "Scene":
        self.first, self.second = await StandIn("node-1").start(), await StandIn("node-2").start()
        for each in (self.first, self.second):
            each.models["classifier"] = [described("classifier")]
        await self.open()
        self.client = aiohttp.ClientSession()
        return self

    async def open(self) -> None:
        """Start the gateway."""
        self.gateway = Gateway(self.settings, [self.first.node, self.second.node], self.edge, self.run)
        await self.gateway.start()
        apps = (control_app(self.gateway), metrics_app(self.gateway))
        self.runners = [await serve(app, "127.0.0.1", 0) for app in apps]
        self.urls = [f"http://127.0.0.1:{runner.addresses[0][1]}" for runner in self.runners]
        await until(lambda: self.version.metadata is not None)

    async def shut(self) -> None:
        """Stop the gateway."""
        for runner in self.runners:
            await runner.cleanup()
        await self.gateway.close()

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.shut()
        await self.first.stop()
        await self.second.stop()

    @property
    def version(self) -> Any:
        return self.gateway.fleet.registered["classifier"].versions["1.0"]

    async def ask(self, method: str, path: str, **words: Any) -> tuple[int, Any]:
        """Status, and JSON; None without a body."""
        async with self.client.request(method, self.urls[0] + path, **words) as answer:
            body = await answer.read()
            return answer.status, (await answer.json() if body else None)

    async def call(self, method: str, body: bytes = b"") -> tuple[int, int, str, bytes]:
        """A gRPC call as Envoy's bridge makes it: HTTP's status, gRPC's, its message, and the body."""
        async with self.client.post(f"{self.urls[0]}/inference.GRPCInferenceService/{method}", data=body) as answer:
            assert answer.content_type == "application/x-protobuf"
            headers = answer.headers
            said = unquote(headers.get("X-Grpc-Message", ""))
            return answer.status, int(headers.get("X-Grpc-Status", 0)), said, await answer.read()


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario in a scene of its own."""

    def run(scenario: Callable[[Scene], Awaitable[None]], **settings: Any) -> None:
        async def whole() -> None:
            async with Scene(tmp_path, Settings(**settings)) as scene:
                await scenario(scene)

        asyncio.run(whole())

    return run


UNKNOWN = {"error": "Request for unknown model: 'x' is not found"}
CASES: list[tuple[str, str, int, Any]] = [
    (
        "GET",
        "/v2",
        200,
        {
            "name": "torchserve-batching",
            "version": VERSION,
            "extensions": ["binary_tensor_data", "parameters", "model_configuration", "statistics"],
        },
    ),
    ("GET", "/v2/health/live", 200, None),
    ("GET", "/v2/health/ready", 200, None),
    (
        "GET",
        "/v2/models/classifier",
        200,
        {
            "name": "classifier",
            "versions": ["1.0"],
            "platform": "torchserve_openvino",
            "inputs": METADATA["inputs"],
            "outputs": METADATA["outputs"],
        },
    ),
    ("GET", "/v2/models/classifier/ready", 200, None),
    ("GET", "/v2/models/classifier/versions/1/ready", 200, None),
    ("GET", "/v2/models/x", 404, UNKNOWN),
    ("GET", "/v2/models/x/ready", 404, UNKNOWN),
    ("GET", "/v2/models/x/config", 404, UNKNOWN),
    ("GET", "/v2/models/x/stats", 404, UNKNOWN),
    ("POST", "/v2/models/x/infer", 404, UNKNOWN),
    (
        "GET",
        "/v2/models/classifier/versions/7",
        404,
        {"error": "Request for unknown model: 'classifier' version 7 is not found; versions: 1.0"},
    ),
    # Envoy knows a route for it as soon as it is found: here only a newcomer is met.
    ("POST", "/v2/models/classifier/infer", 503, {"error": "'classifier' version 1.0 is not at ready state"}),
    ("GET", "/v2/nowhere", 404, {"error": "GET /v2/nowhere: no such route"}),
    ("DELETE", "/v2/models/classifier", 404, {"error": "DELETE /v2/models/classifier: no such route"}),
    ("GET", "/v2/trace/setting", 400, {"error": "tracing is not supported"}),
    ("POST", "/v2/models/classifier/trace/setting", 400, {"error": "tracing is not supported"}),
    ("GET", "/v2/logging", 400, {"error": "changing the log is not supported"}),
    ("GET", "/v2/systemsharedmemory/status", 400, {"error": "shared memory is not supported"}),
    ("POST", "/v2/cudasharedmemory/region/a/register", 400, {"error": "shared memory is not supported"}),
    (
        "POST",
        "/v2/repository/index",
        400,
        {"error": "the repository is not let through; the gateway's setting is management: true"},
    ),
    ("GET", "/nowhere", 404, {"error": "Not Found"}),
]


def test_routes_answer_the_protocol(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        for method, path, status, document in CASES:
            assert (path, *await scene.ask(method, path)) == (path, status, document)

    play(scenario)


def test_configuration_is_what_tritons_tools_read(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        status, document = await scene.ask("GET", "/v2/models/classifier/versions/1.0/config")
        assert status == 200
        assert document == {
            "name": "classifier",
            "platform": "torchserve_openvino",
            "backend": "torchserve",
            "version_policy": {"all": {}},
            "max_batch_size": 16,
            "input": [{"name": "image", "data_type": "TYPE_STRING", "dims": [1]}],
            "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": [1000]}],
            "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 20000},
            "instance_group": [{"name": "classifier", "kind": "KIND_AUTO", "count": 2}],
        }

    play(scenario)


ANY_TENSORS: list[tuple[dict[str, Any], int, dict[str, Any], dict[str, Any]]] = [
    # What a model of tensors says of an input, and the configuration's max_batch_size, input and parameters.
    (
        {"name": "x", "datatype": "BF16", "shape": [-1, -1, 28]},
        16,
        {"name": "x", "data_type": "TYPE_BF16", "dims": [-1, 28]},
        {},
    ),
    (
        # A function that declares nothing: neither the datatype nor the dimensions are known.
        {"name": "x", "datatype": "ANY", "shape": [-1]},
        16,
        {"name": "x", "data_type": "TYPE_INVALID", "dims": []},
        {},
    ),
    (
        # Triton's clients would put rows first; so it has no batches in their sense.
        {"name": "x", "datatype": "FP32", "shape": [4, -1], "batch_dim": 1},
        0,
        {"name": "x", "data_type": "TYPE_FP32", "dims": [4, -1]},
        {"max_batch_size": {"string_value": "16"}, "batch_dim.x": {"string_value": "1"}},
    ),
]


@pytest.mark.parametrize(("said", "rows", "configured", "parameters"), ANY_TENSORS, ids=["shaped", "any", "batch_dim"])
def test_configuration_of_any_tensors_is_the_same_over_http_and_grpc(
    play: Callable[..., None], said: Any, rows: int, configured: Any, parameters: Any
) -> None:
    async def scenario(scene: Scene) -> None:
        for node in (scene.first, scene.second):
            node.metadata = {
                **METADATA,
                "inputs": [said],
                "outputs": [{"name": "y", "datatype": "BOOL", "shape": [-1, 2]}],
            }
            node.models["classifier"] = [described("classifier", start="T1")]
        await scene.gateway.discovery.look()
        await until(lambda: scene.version.metadata["outputs"][0]["name"] == "y")
        _, metadata = await scene.ask("GET", "/v2/models/classifier")
        assert metadata["inputs"] == [{name: said[name] for name in ("name", "datatype", "shape")}]
        _, config = await scene.ask("GET", "/v2/models/classifier/config")
        assert (config["max_batch_size"], config["input"], config.get("parameters", {})) == (
            rows,
            [configured],
            parameters,
        )
        (output,) = config["output"]
        assert output == {"name": "y", "data_type": "TYPE_BOOL", "dims": [2] if rows else [-1, 2]}
        request = CLASSES["ModelConfigRequest"](name="classifier").SerializeToString()
        _, _, _, body = await scene.call("ModelConfig", request)
        answered = CLASSES["ModelConfigResponse"].FromString(body).config
        said_by_grpc = MessageToDict(
            answered, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert (said_by_grpc["max_batch_size"], said_by_grpc["parameters"]) == (rows, parameters)
        (tensor,) = said_by_grpc["input"]
        assert (tensor["data_type"], [int(size) for size in tensor["dims"]]) == (
            configured["data_type"],
            configured["dims"],
        )

    play(scenario)


@pytest.mark.parametrize(
    ("change", "server", "model"),
    [
        # A worker of two that is not READY.
        (lambda scene: scene.first.models.update(classifier=[described("classifier", workers=2, ready=1)]), 503, 200),
        # Registered without workers, as the management API does unasked.
        (lambda scene: scene.first.models.update(other=[described("other", workers=0, ready=0)]), 503, 200),
        (
            lambda scene: [
                each.models.update(classifier=[described("classifier", ready=0)])
                for each in (scene.first, scene.second)
            ],
            503,
            503,
        ),
    ],
    ids=["a worker of two", "no workers", "none on any node"],
)
def test_readiness_is_that_of_all_workers(
    play: Callable[..., None], change: Callable[[Scene], object], server: int, model: int
) -> None:
    async def scenario(scene: Scene) -> None:
        before = scene.gateway.fleet
        change(scene)
        await scene.gateway.discovery.look()
        assert scene.gateway.fleet != before
        assert (await scene.ask("GET", "/v2/health/ready"))[0] == server
        assert (await scene.ask("GET", "/v2/models/classifier/ready"))[0] == model

    play(scenario)


def test_dead_node_makes_the_server_unready_and_its_models_not(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.first.stop()
        await scene.gateway.discovery.look()
        assert (await scene.ask("GET", "/v2/health/ready"))[0] == 503
        assert (await scene.ask("GET", "/v2/models/classifier/ready"))[0] == 200
        await scene.ask("PUT", "/control/nodes/node-1", json={"draining": True})
        assert (await scene.ask("GET", "/v2/health/ready"))[0] == 200

    play(scenario)


def test_statistics_are_summed_over_nodes_and_outlive_a_restart(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        scene.first.metrics, scene.second.metrics = REQUESTS.format(5), REQUESTS.format(6)
        await scene.gateway.scrape()
        for path in ("/v2/models/stats", "/v2/models/classifier/stats", "/v2/models/classifier/versions/1/stats"):
            _, document = await scene.ask("GET", path)
            (found,) = document["model_stats"]
            # A whole number, as perf_analyzer reads it.
            assert (found["name"], found["version"]) == ("classifier", "1")
            assert found["inference_stats"]["success"]["count"] == 11
        await scene.shut()
        scene.first.metrics = REQUESTS.format(1)
        await scene.open()
        await scene.gateway.scrape()
        _, document = await scene.ask("GET", "/v2/models/classifier/stats")
        assert document["model_stats"][0]["inference_stats"]["success"]["count"] == 12

    play(scenario)


def test_repository_loads_and_unloads_on_all_nodes(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        _, document = await scene.ask("POST", "/v2/repository/index", json={"ready": True})
        assert document == [{"name": "classifier", "version": "1.0", "state": "READY", "reason": ""}]
        assert (await scene.ask("POST", "/v2/repository/models/classifier/unload"))[0] == 200
        assert (scene.first.models, scene.second.models) == ({}, {})
        # What is answered is so.
        assert (await scene.ask("GET", "/v2/models/classifier"))[0] == 404
        assert (await scene.ask("POST", "/v2/repository/models/classifier/unload"))[0] == 404
        assert (await scene.ask("POST", "/v2/repository/models/classifier/load"))[0] == 200
        assert "classifier" in scene.first.models
        assert "classifier" in scene.second.models
        assert (await scene.ask("GET", "/v2/models/classifier/ready"))[0] == 200
        assert await scene.ask("POST", "/v2/repository/models/x/load") == (404, {"error": "no archive x.mar"})
        assert (await scene.ask("POST", "/v2/repository/models/..%2Fx/load"))[0] == 400
        status, _ = await scene.ask("POST", "/v2/repository/models/x/load", json={"parameters": {"config": "{}"}})
        assert status == 400

    play(scenario, management=True)


def test_repository_removes_the_default_version_last(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        scene.first.models["classifier"] = [described("classifier", "1.0"), described("classifier", "2.0")]
        assert (await scene.ask("POST", "/v2/repository/models/classifier/unload"))[0] == 200
        assert scene.first.models == {}

    play(scenario, management=True)


def test_repository_names_the_nodes_that_did_not(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.second.stop()
        status, document = await scene.ask("POST", "/v2/repository/models/classifier/unload")
        assert status == 502
        assert document["error"].startswith("1 of 2 nodes did not do it: node-2: cannot be reached")
        assert scene.first.models == {}

    play(scenario, management=True)


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"[" * 100_000, b"\xff"])
def test_body_that_is_no_object_is_refused(play: Callable[..., None], body: bytes) -> None:
    async def scenario(scene: Scene) -> None:
        status, document = await scene.ask("POST", "/v2/repository/index", data=body)
        assert (status, list(document)) == (400, ["error"])

    play(scenario, management=True)


def test_body_that_is_not_encoded_as_it_says_is_refused(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        headers = {"Content-Encoding": "gzip"}
        status, document = await scene.ask("POST", "/v2/repository/index", data=b"{}", headers=headers)
        assert (status, list(document)) == (400, ["error"])

    play(scenario, management=True)


# -- over gRPC ----------------------------------------------------------------------------------------------------


def test_grpc_answers_what_http_does(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        async def ask(method: str, **fields: Any) -> Any:
            status, _, _, body = await scene.call(method, CLASSES[f"{method}Request"](**fields).SerializeToString())
            assert status == 200
            return CLASSES[f"{method}Response"].FromString(body)

        assert (await ask("ServerLive")).live
        assert (await ask("ServerReady")).ready
        assert (await ask("ModelReady", name="classifier", version="1")).ready
        assert list((await ask("ServerMetadata")).extensions)[-1] == "model_repository"
        metadata = await ask("ModelMetadata", name="classifier")
        assert list(metadata.versions) == ["1.0"]
        assert (metadata.inputs[0].name, list(metadata.inputs[0].shape)) == ("image", [-1, 1])
        config = (await ask("ModelConfig", name="classifier")).config
        assert (config.max_batch_size, config.input[0].data_type, list(config.output[0].dims)) == (16, 13, [1000])
        assert config.dynamic_batching.max_queue_delay_microseconds == 20_000
        scene.first.metrics = REQUESTS.format(5)
        await scene.gateway.scrape()
        (statistics,) = (await ask("ModelStatistics")).model_stats
        assert (statistics.version, statistics.inference_stats.success.count) == ("1", 5)
        assert (await ask("RepositoryIndex")).models[0].state == "READY"
        await ask("RepositoryModelUnload", model_name="classifier")
        assert list((await ask("RepositoryIndex")).models) == []
        await ask("RepositoryModelLoad", model_name="classifier")
        assert "classifier" in scene.first.models

    play(scenario, management=True)


def test_grpc_errors_have_status_and_message(play: Callable[..., None]) -> None:
    def message(kind: str, **fields: Any) -> bytes:
        made: bytes = CLASSES[kind](**fields).SerializeToString()
        return made

    unknown = "Request for unknown model: 'x' is not found"
    cases = [
        ("ModelMetadata", message("ModelMetadataRequest", name="x"), 5, unknown),
        ("ModelReady", message("ModelReadyRequest", name="x"), 5, unknown),
        ("ModelInfer", message("ModelInferRequest", model_name="x", raw_input_contents=[b"0" * 200_000]), 5, unknown),
        ("ModelInfer", gzip.compress(message("ModelInferRequest", model_name="x"), mtime=0), 5, unknown),
        (
            "ModelInfer",
            message("ModelInferRequest", model_name="n" * 200),
            5,
            f"Request for unknown model: '{'n' * 200}'",
        ),
        ("ModelInfer", message("ModelInferRequest", model_name="classifier", model_version="9"), 5, "version 9"),
        ("ModelInfer", b"", 3, "model_name must be set"),
        ("ModelInfer", b"\x0a\xff\xff\xff\xff", 3, "model_name must be set"),
        ("ModelMetadata", b"\xff\xff", 3, "the message is no ModelMetadataRequest"),
        ("ModelMetadata", b"\x1f\x8b" + b"x" * 30, 3, "the message is no gzip"),
        ("ModelMetadata", gzip.compress(b"\x0a" * 200_000, mtime=0), 3, "larger than 65536 bytes"),
        ("ModelMetadata", b"0" * 70_000, 3, "65536 bytes"),
        ("TraceSetting", b"", 12, "TraceSetting is not supported"),
        ("SystemSharedMemoryStatus", b"", 12, "SystemSharedMemoryStatus is not supported"),
        ("RepositoryIndex", b"", 12, "management: true"),
    ]

    async def scenario(scene: Scene) -> None:
        for method, body, status, words in cases:
            _, found, said, answered = await scene.call(method, body)
            assert (method, found, answered) == (method, status, b"")
            assert words in said

    play(scenario)


# -- the operator's -----------------------------------------------------------------------------------------------


def test_draining_is_told_envoy_and_outlives_a_restart(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        status, document = await scene.ask("PUT", "/control/nodes/node-1", json={"draining": True})
        first, second = (
            {"name": each.name, "management": each.node.management} for each in (scene.first, scene.second)
        )
        expected = {**first, "state": "up", "is_draining": True, "is_routed": True, "in_flight": 3}
        assert (status, document) == (200, expected)
        assert scene.edge.fleets[-1].draining == {"node-1"}
        await scene.shut()
        await scene.open()
        assert scene.edge.fleets[-1].draining == {"node-1"}
        _, nodes = await scene.ask("GET", "/control/nodes")
        assert nodes == [
            expected,
            {**second, "state": "up", "is_draining": False, "is_routed": False, "in_flight": 0},
        ]
        await scene.ask("PUT", "/control/nodes/node-1", json={"draining": False})
        assert scene.edge.fleets[-1].draining == set()
        scene.edge.is_running = False
        _, nodes = await scene.ask("GET", "/control/nodes")
        assert [node["in_flight"] for node in nodes] == [0, 0]

    play(scenario)


def test_canary_is_told_envoy_and_outlives_a_restart(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        scene.first.models["classifier"] = [described("classifier", "1.0"), described("classifier", "2.0")]
        await scene.gateway.discovery.look()
        asked = {"version": "2", "percent": 5.0, "header": ["X-Canary", "yes"]}
        expected = {**asked, "version": "2.0"}
        assert await scene.ask("PUT", "/control/canaries/classifier", json=asked) == (200, expected)
        canary = Canary("2.0", 5.0, ("X-Canary", "yes"))
        assert scene.edge.fleets[-1].canaries == {"classifier": canary}
        await scene.shut()
        await scene.open()
        assert await scene.ask("GET", "/control/canaries/classifier") == (200, expected)
        assert scene.edge.fleets[-1].canaries == {"classifier": canary}
        # A version that has gone gets nobody.
        del scene.first.models["classifier"][1]
        await scene.gateway.discovery.look()
        assert scene.gateway.fleet.canaries == {}
        assert await scene.ask("DELETE", "/control/canaries/classifier") == (204, None)
        assert await scene.ask("GET", "/control/canaries/classifier") == (404, {"error": "no canary of classifier"})
        assert await scene.ask("GET", "/control/canaries") == (200, {})

    play(scenario)


def test_canary_of_the_settings_is_told_envoy_and_the_control_ports_own_wins(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        assert scene.gateway.fleet.canaries == {}
        scene.first.models["classifier"] = [described("classifier", "1.0"), described("classifier", "2.0")]
        await scene.gateway.discovery.look()
        # "2" is the version "2.0", as it is for the control port.
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 5.0)}
        asked = {"version": "2.0", "percent": 50.0, "header": None}
        assert await scene.ask("PUT", "/control/canaries/classifier", json=asked) == (200, asked)
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 50.0)}
        await scene.ask("DELETE", "/control/canaries/classifier")
        assert scene.gateway.fleet.canaries == {"classifier": Canary("2.0", 5.0)}
        declared = {"version": "2", "percent": 5.0, "header": None}
        assert await scene.ask("GET", "/control/canaries") == (200, {"classifier": declared})

    play(scenario, canaries={"classifier": CanaryRequest(version="2", percent=5.0)})


def test_node_that_drains_by_itself_is_said_to_and_leaves_the_server_ready(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        drains = {"code": 503, "type": "Draining", "message": "."}
        scene.first.broken = lambda: web.json_response(drains, status=503)
        await scene.gateway.discovery.look()
        _, nodes = await scene.ask("GET", "/control/nodes")
        assert [(node["state"], node["is_draining"]) for node in nodes] == [("up", True), ("up", False)]
        assert scene.gateway.fleet.draining == {"node-1"}
        assert (await scene.ask("GET", "/v2/health/ready"))[0] == 200

    play(scenario)


def test_withdrawn_model_is_not_there_and_what_is_in_flight_for_it_is_counted(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        url = "/control/models/classifier"
        scene.edge.in_flight = {
            "classifier": {"node-1": 2, "node-2": 1},
            "classifier/1.0": {"node-2": 4},
            "x": {"node-1": 9},
        }
        said = {"model": "classifier", "version": None, "is_withdrawn": True, "in_flight": 7}
        assert await scene.ask("PUT", url, json={"withdrawn": True}) == (200, said)
        fleet = scene.edge.fleets[-1]
        assert (fleet.models, list(fleet.withdrawn), list(fleet.registered)) == ({}, ["classifier"], ["classifier"])
        assert await scene.ask("GET", "/v2/models/classifier") == (
            404,
            {"error": "Request for unknown model: 'classifier' is not found"},
        )
        assert await scene.ask("POST", "/v2/repository/index") == (200, [])
        # With its workers gone it makes nothing unready.
        scene.first.models["classifier"] = [described("classifier", ready=0)]
        await scene.gateway.discovery.look()
        assert (await scene.ask("GET", "/v2/health/ready"))[0] == 200
        # It outlives the control process, whose nodes have not answered at first.
        await scene.shut()
        await scene.open()
        assert await scene.ask("GET", url) == (200, said)
        assert await scene.ask("GET", "/control/models") == (200, [{**said, "version": "1.0"}])
        scene.edge.in_flight = {}
        assert (await scene.ask("GET", url))[1]["in_flight"] == 0
        scene.edge.is_running = False
        assert (await scene.ask("GET", url))[1]["in_flight"] is None
        scene.edge.is_running = True
        assert await scene.ask("PUT", url, json={"withdrawn": False}) == (
            200,
            {**said, "is_withdrawn": False, "in_flight": 0},
        )
        assert (await scene.ask("GET", "/v2/models/classifier"))[0] == 200

    play(scenario, management=True)


def test_withdrawn_version_leaves_the_others(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        for node in (scene.first, scene.second):
            node.models["classifier"] = [described("classifier", "2.0"), described("classifier", "1.0")]
        await scene.gateway.discovery.look()
        await scene.ask("PUT", "/control/canaries/classifier", json={"version": "1.0", "percent": 5.0})
        assert scene.edge.fleets[-1].canaries
        # Requests without a version are the default's.
        scene.edge.in_flight = {
            "classifier": {"node-1": 2},
            "classifier/1.0": {"node-1": 3},
            "classifier/2.0": {"node-2": 4},
        }
        body = {"version": "1", "withdrawn": True}
        said = {"model": "classifier", "version": "1.0", "is_withdrawn": True, "in_flight": 3}
        assert await scene.ask("PUT", "/control/models/classifier", json=body) == (200, said)
        assert await scene.ask("GET", "/control/models/classifier?version=1") == (200, said)
        assert (await scene.ask("GET", "/control/models/classifier?version=2.0"))[1]["in_flight"] == 6
        fleet = scene.edge.fleets[-1]
        assert (list(fleet.models["classifier"].versions), fleet.canaries) == (["2.0"], {})
        assert (await scene.ask("GET", "/v2/models/classifier"))[1]["versions"] == ["2.0"]
        assert (await scene.ask("GET", "/v2/models/classifier/versions/1"))[0] == 404
        # The last that is served may go, though it is the default.
        status, document = await scene.ask(
            "PUT", "/control/models/classifier", json={"version": "2", "withdrawn": True}
        )
        assert status == 200, document
        assert scene.edge.fleets[-1].models == {}

    play(scenario)


def test_default_version_alone_is_not_withdrawn(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        for node in (scene.first, scene.second):
            node.models["classifier"] = [described("classifier", "1.0"), described("classifier", "2.0")]
        # The gateway has not seen it yet, and looks.
        body = {"version": "1.0", "withdrawn": True}
        status, document = await scene.ask("PUT", "/control/models/classifier", json=body)
        assert (status, document["error"].partition(":")[0]) == (
            400,
            "version 1.0 of classifier is its default version",
        )
        assert scene.gateway.fleet.withdrawn == {}

    play(scenario)


def test_withdrawn_model_that_is_registered_anew_is_served(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ask("PUT", "/control/models/classifier", json={"withdrawn": True})
        await scene.gateway.discovery.look()
        del scene.first.models["classifier"]
        await scene.gateway.discovery.look()
        # One node has it still.
        assert scene.gateway.fleet.models == {}
        # And one that is away keeps what it had.
        await scene.second.stop()
        await scene.gateway.discovery.look()
        assert list(scene.gateway.fleet.withdrawn) == ["classifier"]
        await scene.second.start()
        del scene.second.models["classifier"]
        await scene.gateway.discovery.look()
        assert scene.gateway.decisions.withdrawn == set()
        scene.first.models["classifier"] = [described("classifier")]
        await scene.gateway.discovery.look()
        assert list(scene.gateway.fleet.models) == ["classifier"]

    play(scenario)


def test_withdrawal_of_what_is_gone_and_back_before_the_gateway_looks_is_ended_by_hand(
    play: Callable[..., None],
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.ask("PUT", "/control/models/classifier", json={"withdrawn": True})
        for node in (scene.first, scene.second):
            node.models.clear()
        status, _ = await scene.ask("PUT", "/control/models/classifier", json={"withdrawn": False})
        assert (status, set(scene.gateway.decisions.withdrawn)) == (404, set())

    play(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/control/nodes/x", b'{"draining": true}', 404, "no node x; known are node-1, node-2"),
        ("/control/nodes/node-1", b"", 400, "draining: Field required"),
        ("/control/nodes/node-1", b'{"draining": 1}', 400, "draining: Input should be a valid boolean"),
        ("/control/nodes/node-1", b"{", 400, "the body: Invalid JSON"),
        ("/control/models/x", b'{"withdrawn": true}', 404, "unknown model: 'x'"),
        ("/control/models/classifier", b'{"withdrawn": true, "version": "7"}', 404, "version 7 is not found"),
        ("/control/models/classifier", b"{}", 400, "withdrawn: Field required"),
        ("/control/models/classifier", b'{"withdrawn": true, "version": 1}', 400, "version: "),
        ("/control/canaries/x", b'{"version": "1", "percent": 5}', 404, "unknown model: 'x'"),
        ("/control/canaries/classifier", b'{"version": "2", "percent": 5}', 404, "version 2 is not found"),
        ("/control/canaries/classifier", b'{"version": "1", "percent": 5}', 400, "is its default version"),
        ("/control/canaries/classifier", b'{"version": "1", "percent": 101}', 400, "percent: "),
        ("/control/canaries/classifier", b'{"version": "1", "percent": 5, "header": ["a b", "c"]}', 400, "header.0: "),
        ("/control/canaries/classifier", b'{"version": "1", "percent": 5, "extra": 1}', 400, "extra: "),
    ],
)
def test_decision_that_cannot_be_is_refused(
    play: Callable[..., None], path: str, body: bytes, status: int, words: str
) -> None:
    async def scenario(scene: Scene) -> None:
        found, document = await scene.ask("PUT", path, data=body)
        assert found == status
        assert words in document["error"]

    play(scenario)


def test_metrics_are_those_of_envoy_and_of_every_node(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        scene.first.metrics = scene.second.metrics = REQUESTS.format(5)
        await scene.second.stop()
        async with scene.client.get(f"{scene.urls[1]}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        assert "envoy_server_live{} 1" in lines
        assert (
            'handler_requests_total{node="node-1",ModelName="classifier",ModelVersion="1.0",Outcome="success",} 5'
            in lines
        )
        assert {'gateway_node_up{node="node-1"} 1', 'gateway_node_up{node="node-2"} 0'} < set(lines)
        # The metrics port answers nothing else, and the control port no metrics.
        async with scene.client.get(f"{scene.urls[1]}/control/nodes") as answer:
            assert answer.status == 404
        assert (await scene.ask("GET", "/metrics"))[0] == 404

    play(scenario)


def test_gateways_own_metrics_are_those_of_envoy_and_of_what_it_has_seen(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        scene.first.metrics = REQUESTS.format(5)
        worker = scene.first.models["classifier"][0]["workers"][0]
        worker["pid"] = 100
        await scene.gateway.discovery.look()
        # It dies: for a while it has no process, then it has another.
        worker.update(pid=-1, status="UNLOADING")
        await scene.gateway.discovery.look()
        worker.update(pid=101, status="READY")
        scene.first.models["classifier"][0]["jobQueueStatus"]["pendingRequests"] = 7
        await scene.gateway.discovery.look()
        await scene.second.stop()
        await scene.gateway.discovery.look()
        await scene.gateway.scrape()
        assert (await scene.ask("PUT", "/control/nodes/node-2", json={"draining": True}))[0] == 200
        async with scene.client.get(f"{scene.urls[1]}/metrics/gateway") as answer:
            lines = (await answer.text()).splitlines()
        assert "envoy_server_live{} 1" in lines
        of = '{{node="{}",model="classifier",version="1.0"}} {}'
        assert [line for line in lines if line.startswith("gateway_")] == [
            'gateway_node_up{node="node-1"} 1',
            'gateway_node_up{node="node-2"} 0',
            'gateway_node_draining{node="node-1"} 0',
            'gateway_node_draining{node="node-2"} 1',
            "gateway_workers" + of.format("node-1", 1),
            "gateway_workers" + of.format("node-2", 1),
            "gateway_workers_ready" + of.format("node-1", 1),
            "gateway_workers_ready" + of.format("node-2", 0),
            "gateway_worker_restarts_total" + of.format("node-1", 1),
            "gateway_worker_restarts_total" + of.format("node-2", 0),
            "gateway_queued_requests" + of.format("node-1", 7),
        ]
        assert not any(line.startswith("handler_") for line in lines)
        # And they are among all metrics.
        async with scene.client.get(f"{scene.urls[1]}/metrics") as answer:
            assert set(lines) <= set((await answer.text()).splitlines())

    play(scenario)


def test_node_that_leaves_the_settings_is_not_draining_when_it_comes_back(play: Callable[..., None]) -> None:
    async def scenario(scene: Scene) -> None:
        both = [scene.first.node, scene.second.node]
        await scene.ask("PUT", "/control/nodes/node-1", json={"draining": True})
        scene.gateway.configure(scene.settings, both[1:])
        await until(lambda: list(scene.edge.fleets[-1].nodes) == ["node-2"])
        scene.gateway.configure(scene.settings, both)
        await until(lambda: len(scene.edge.fleets[-1].nodes) == 2)
        assert scene.edge.fleets[-1].draining == set()

    play(scenario)
