"""What the objects of deploy/kubernetes say of each other, and of the programs that they run, is so."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import inference_services, prometheus_rules
from deploy.container import envoy as node_envoy
from deploy.container.drain import QUIET_S
from deploy.container.node import LAST_ANSWER_S
from deploy.container.settings import NOTICE_S, PORT
from deploy.gateway.envoy.bootstrap import HEAP_BYTES
from deploy.gateway.envoy.routes import OPEN
from deploy.gateway.settings import Settings as GatewaySettings
from deploy.gateway.settings import read as read_gateway
from deploy.gateway.supervisor import STOP_S
from deploy.memory import MIB, Served, need
from deploy.models import models
from deploy.modes import packed
from deploy.properties import Settings
from tests.deploy.kubernetes.flows import Labels, Pod, is_let, is_let_in, matches, namespace
from tests.deploy.kubernetes.rendered import (
    COMPONENTS,
    KUBERNETES,
    OVERLAYS,
    Object,
    component,
    jobs,
    of_kind,
    one,
    overlay,
    title,
)

pytestmark = pytest.mark.kubectl

RUN_ON = tuple(name for name in OVERLAYS if name != "kserve")
# Bytes beside the heap and direct memory: Java's classes, threads and code; a node's Envoy and Python.
JAVA_REST, BESIDE = 512 * MIB, 512 * MIB
# Bytes of a worker: 1,038 MB measured of ResNet-152 (docs/results.md), the largest of the examples; its streams' second
# copy of the weights in adaptive mode.
WORKER, SECOND_COPY = 1100 * MIB, 250 * MIB
# Bytes beside Envoy's heap in an edge: the control process.
CONTROL = 300 * MIB
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

EDGE = {"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "edge"}
NODE = {"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "node"}
HERE = namespace("torchserve")


def folders() -> Iterator[tuple[str, list[Object]]]:
    """All that can be applied to one namespace; jobs come on top of an overlay."""
    for name in RUN_ON:
        yield f"overlays/{name}", overlay(name)
    for name in COMPONENTS:
        yield f"components/{name}", component(name)
    yield "jobs", [*overlay("cpu"), *jobs()]


def pods() -> Iterator[tuple[str, Labels, dict[str, Any]]]:
    """Every pod: where it is from, its labels and its spec."""
    for where, objects in folders():
        for each in of_kind(objects, "Deployment", "Job"):
            template = each["spec"]["template"]
            yield f"{title(each)} of {where}", template["metadata"]["labels"], template["spec"]
    for each in of_kind(overlay("kserve"), "ServingRuntime"):
        yield f"{title(each)} of overlays/kserve", each["metadata"]["labels"], each["spec"]


def deployment(objects: Sequence[Object], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment", name)["spec"]
    return spec


def container(objects: Sequence[Object], name: str) -> dict[str, Any]:
    [found] = deployment(objects, f"torchserve-{name}")["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def size(text: str) -> int:
    """Bytes of a quantity."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text)
    assert match, text
    return int(match[1]) * UNITS[match[2]]


def configuration(objects: Sequence[Object], folder: Path) -> Settings:
    """The settings that a node of an overlay reads."""
    path = folder / "config.properties"
    path.write_text(one(objects, "ConfigMap", "torchserve-node")["data"]["config.properties"])
    return Settings.read(path)


def served(settings: Settings) -> list[Served]:
    return [
        Served(settings.job_queue_size, int(entry["batchSize"]) * int(entry["maxWorkers"]))
        for versions in settings.models.values()
        for entry in versions.values()
    ]


# -- who selects whom ----------------------------------------------------------------------------------------------


def test_what_selects_pods_selects_some() -> None:
    for where, objects in folders():
        templates = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(objects, "Deployment")]
        for each in of_kind(objects, "Service", "PodDisruptionBudget", "PodMonitor", "Deployment"):
            selector = each["spec"]["selector"]
            selector = selector if each["kind"] != "Service" else {"matchLabels": selector}
            found = [labels for labels in templates if matches(selector, labels)]
            assert len(found) == 1, f"{title(each)} of {where} selects {len(found)} Deployments"
            component_of = each["metadata"]["labels"]["app.kubernetes.io/component"]
            assert found[0]["app.kubernetes.io/component"] == component_of


def test_pods_are_spread_by_the_labels_that_they_have() -> None:
    for _, labels, spec in pods():
        for each in spec.get("topologySpreadConstraints", []):
            assert matches(each["labelSelector"], labels)


def test_every_object_says_what_it_is_part_of() -> None:
    for where, objects in [*folders(), ("overlays/kserve", overlay("kserve"))]:
        for each in objects:
            labels = each["metadata"]["labels"]
            assert labels["app.kubernetes.io/part-of"] == "torchserve-batching", f"{title(each)} of {where}"


# -- ports, probes, hooks ------------------------------------------------------------------------------------------


def test_services_and_monitors_name_ports_that_pods_have() -> None:
    for where, objects in folders():
        for each in of_kind(objects, "Service", "PodMonitor"):
            labels = {"matchLabels": each["metadata"]["labels"]}
            role = labels["matchLabels"]["app.kubernetes.io/component"]
            names = {port["name"] for port in container(objects, role)["ports"]}
            key, inner = ("ports", "targetPort") if each["kind"] == "Service" else ("podMetricsEndpoints", "port")
            assert {port[inner] for port in each["spec"][key]} <= names, f"{title(each)} of {where}"


def test_probes_ask_what_the_programs_answer() -> None:
    answered = {
        "node": {
            route["match"]["path"]
            for host in node_envoy.routes(node_envoy.View())["virtual_hosts"]
            for route in host["routes"]
            if "path" in route["match"]
        },
        "edge": set(OPEN),
    }
    for _, objects in folders():
        for role, paths in answered.items():
            each = container(objects, role)
            names = {port["name"] for port in each["ports"]}
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = each[kind]
                asked = probe.get("httpGet") or probe["tcpSocket"]
                assert asked["port"] in names
                assert asked.get("path", next(iter(paths))) in paths
    node = container(overlay("cpu"), "node")
    assert node["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert node["livenessProbe"]["httpGet"]["path"] == "/live"


def test_ports_are_those_that_the_programs_listen_on() -> None:
    settings = GatewaySettings()
    for _, objects in folders():
        assert [port["containerPort"] for port in container(objects, "node")["ports"]] == [PORT]
        assert {port["name"]: port["containerPort"] for port in container(objects, "edge")["ports"]} == {
            "http": settings.ports.http,
            "grpc": settings.ports.grpc,
            "metrics": settings.ports.metrics,
            "control": settings.ports.control,
        }


def test_edges_find_nodes_by_the_headless_service() -> None:
    for _, objects in folders():
        discover = yaml.safe_load(one(objects, "ConfigMap", "torchserve-edge")["data"]["gateway.yaml"])["discover"]
        service = one(objects, "Service", discover["host"])
        assert service["spec"]["clusterIP"] == "None"
        assert [port["port"] for port in service["spec"]["ports"]] == [discover["port"]] == [PORT]


def test_grace_covers_a_drain() -> None:
    slowest = max(float(model.config().get("responseTimeout", 120)) for model in models().values())
    node = deployment(overlay("cpu"), "torchserve-node")["template"]["spec"]
    assert node["terminationGracePeriodSeconds"] >= NOTICE_S + slowest + QUIET_S + LAST_ANSWER_S + 30
    edge = deployment(overlay("cpu"), "torchserve-edge")["template"]["spec"]
    [word, seconds] = edge["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    limits = GatewaySettings().limits
    assert edge["terminationGracePeriodSeconds"] >= int(seconds) + limits.response_s + STOP_S + 10
    [runtime] = of_kind(overlay("kserve"), "ServingRuntime")
    hook = runtime["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    slept = re.match(r"sleep (\d+);", hook)
    assert slept
    assert int(slept[1]) + NOTICE_S + slowest + QUIET_S + LAST_ANSWER_S + 30 <= inference_services.GRACE_S


def test_the_pre_stop_hook_is_a_command_that_there_is() -> None:
    assert container(overlay("cpu"), "node")["lifecycle"]["preStop"]["exec"]["command"] == [
        "python", "-m", "deploy.container", "drain",
    ]  # fmt: skip


def test_a_rolling_update_takes_no_replica_away() -> None:
    for _, objects in folders():
        for name in ("torchserve-node", "torchserve-edge"):
            strategy = deployment(objects, name)["strategy"]
            assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


# -- files ---------------------------------------------------------------------------------------------------------


def test_what_is_mounted_is_there() -> None:
    for where, _, spec in pods():
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {
            mount["name"]
            for each in [*spec.get("initContainers", []), *spec["containers"]]
            for mount in each["volumeMounts"]
        }
        # KServe's runtime has `config` from each InferenceService.
        assert mounted - {"config"} <= set(volumes), where
        assert set(volumes) <= mounted, where


def test_volumes_name_objects_that_are_rendered_or_documented() -> None:
    documented = {"Secret": {"torchserve-edge", "torchserve-object-store"}, "PersistentVolumeClaim": {"bulk-inputs",
                  "bulk-answers"}}  # fmt: skip
    for where, objects in folders():
        names = {kind: {each["metadata"]["name"] for each in of_kind(objects, kind)} for kind in (
            "ConfigMap", "PersistentVolumeClaim")}  # fmt: skip
        for each in of_kind(objects, "Deployment", "Job"):
            for volume in each["spec"]["template"]["spec"]["volumes"]:
                if "configMap" in volume:
                    assert volume["configMap"]["name"] in names["ConfigMap"], where
                if "secret" in volume:
                    assert volume["secret"]["secretName"] in documented["Secret"], where
                if "persistentVolumeClaim" in volume:
                    claim = volume["persistentVolumeClaim"]["claimName"]
                    known = names["PersistentVolumeClaim"] | documented["PersistentVolumeClaim"]
                    assert claim in known, where


def test_a_changed_configuration_is_another_name() -> None:
    names = [one(overlay(name), "ConfigMap", "torchserve-node")["metadata"]["name"] for name in ("cpu", "adaptive")]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"torchserve-node-[a-z0-9]{10}", name) for name in names)


def test_inference_services_name_their_configuration() -> None:
    objects = overlay("kserve")
    maps = {each["metadata"]["name"]: each for each in of_kind(objects, "ConfigMap")}
    services = of_kind(objects, "InferenceService")
    assert {each["metadata"]["name"] for each in services} == set(models())
    for each in services:
        [volume] = each["spec"]["predictor"]["volumes"]
        text = maps[volume["configMap"]["name"]]["data"]["config.properties"]
        assert f"load_models={each['metadata']['name']}.mar\n" in text


def test_written_files_are_those_of_their_sources() -> None:
    folder = inference_services.FOLDER
    assert {path.name: path.read_text() for path in folder.iterdir()} == inference_services.files(models())
    assert prometheus_rules.FILE.read_text() == prometheus_rules.text()


def test_rules_of_the_operator_are_those_of_the_files() -> None:
    rendered = {each["metadata"]["name"]: each["spec"] for each in of_kind(component("monitoring"), "PrometheusRule")}
    written = {f"torchserve-{path.stem}": path for path in prometheus_rules.RULES.glob("*.yml")}
    assert set(rendered) == set(written) != set()
    for name, path in written.items():
        assert rendered[name] == yaml.safe_load(path.read_text())


def test_jobs_of_monitors_are_those_that_the_rules_know() -> None:
    text = "".join(path.read_text() for path in prometheus_rules.RULES.glob("*.yml"))
    for each in of_kind(component("monitoring"), "PodMonitor"):
        [endpoint] = each["spec"]["podMetricsEndpoints"]
        labels = {rule["targetLabel"]: rule.get("replacement") for rule in endpoint["relabelings"]}
        name = each["metadata"]["name"]
        assert labels["job"] == name
        assert name in text or "torchserve-(gateway|edge)" in text


# -- what the programs read ----------------------------------------------------------------------------------------


def test_settings_are_those_that_the_programs_know(tmp_path: Path) -> None:
    for where, objects in folders():
        settings = configuration(objects, tmp_path)
        assert not settings.has_model_api, where
        assert {file.removesuffix(".mar") for file in settings.load_models} == set(settings.models), where
        path = tmp_path / "gateway.yaml"
        path.write_text(one(objects, "ConfigMap", "torchserve-edge")["data"]["gateway.yaml"])
        gateway = read_gateway(path)
        assert gateway.ports.address == gateway.ports.internal_address == "0.0.0.0", where  # noqa: S104
    [edge] = [each for each in of_kind(overlay("kserve"), "ConfigMap") if "gateway.yaml" in each["data"]]
    path.write_text(edge["data"]["gateway.yaml"])
    assert [node.inference for node in read_gateway(path).nodes] == [f"http://127.0.0.1:{PORT}"]


def test_the_example_of_a_secret_is_a_configuration_without_a_real_key(tmp_path: Path) -> None:
    [path] = KUBERNETES.glob("components/client-keys/*.example.yaml")
    example = yaml.safe_load(path.read_text())
    (tmp_path / "gateway.yaml").write_text(example["stringData"]["gateway.yaml"])
    assert ["REPLACE" in key.key for key in read_gateway(tmp_path / "gateway.yaml").keys] == [True]
    assert not [title(each) for _, objects in folders() for each in of_kind(objects, "Secret")]


def test_memory_holds_what_may_queue(tmp_path: Path) -> None:
    for where, objects in folders():
        settings = configuration(objects, tmp_path)
        assert settings.heap_bytes is not None, where
        assert settings.direct_bytes is not None, where
        wanted = need(settings, served(settings))
        assert wanted.heap_bytes <= settings.heap_bytes, where
        assert wanted.direct_bytes <= settings.direct_bytes, where
        entries = [(name, entry) for name, versions in settings.models.items() for entry in versions.values()]
        copies = (
            SECOND_COPY if packed(name, models()[name].config()).get("continuousBatching") else 0 for name, _ in entries
        )
        workers = sum(int(entry["maxWorkers"]) for _, entry in entries) * WORKER + sum(copies)
        whole = settings.heap_bytes + settings.direct_bytes + JAVA_REST + BESIDE + workers
        assert whole <= size(container(objects, "node")["resources"]["limits"]["memory"]), where
    assert size(container(overlay("cpu"), "edge")["resources"]["limits"]["memory"]) >= HEAP_BYTES + CONTROL


def test_memory_of_kserves_pods_holds_what_may_queue(tmp_path: Path) -> None:
    [runtime] = of_kind(overlay("kserve"), "ServingRuntime")
    limits = {each["name"]: each["resources"]["limits"] for each in runtime["spec"]["containers"]}
    for name, model in models().items():
        path = tmp_path / "config.properties"
        path.write_text((inference_services.FOLDER / f"{name}.properties").read_text())
        settings = Settings.read(path)
        wanted = need(settings, served(settings))
        assert (settings.heap_bytes or 0) >= wanted.heap_bytes, name
        assert (settings.direct_bytes or 0) >= wanted.direct_bytes, name
        assert settings.models[name].keys() == {model.version}
        whole = (settings.heap_bytes or 0) + (settings.direct_bytes or 0) + JAVA_REST + BESIDE + WORKER + SECOND_COPY
        assert whole <= size(limits["kserve-container"]["memory"])


def test_nodes_have_whole_cores_and_no_more_than_they_ask_for() -> None:
    for where, labels, spec in pods():
        if labels["app.kubernetes.io/component"] in ("node", "runtime"):
            resources = spec["containers"][0]["resources"]
            assert resources["requests"] == resources["limits"], where
            assert resources["limits"]["cpu"].isdecimal(), where


def test_volumes_of_pods_are_bounded_and_within_what_the_pod_may_write() -> None:
    for where, _, spec in pods():
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume]
        allowed = sum(size(each["resources"]["limits"]["ephemeral-storage"]) for each in spec["containers"])
        assert sum(map(size, sizes)) <= allowed, where


# -- closed doors --------------------------------------------------------------------------------------------------


def test_every_pod_is_restricted_as_its_namespace_demands() -> None:
    for where, _, spec in pods():
        for each in [*spec.get("initContainers", []), *spec["containers"]]:
            context = {**spec.get("securityContext", {}), **each["securityContext"]}
            assert context["runAsNonRoot"] is True, where
            assert context["runAsUser"] == 1000, where
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["privileged"] is False, where
            assert context["capabilities"] == {"drop": ["ALL"]}, where
            assert set(each["resources"]) == {"requests", "limits"}, where
        assert not any(spec.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")), where
    for _, objects in [*folders(), ("", overlay("kserve"))]:
        for each in of_kind(objects, "Namespace"):
            assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_nobody_has_a_token_of_the_api_server() -> None:
    for where, labels, spec in pods():
        if labels["app.kubernetes.io/component"] != "runtime":
            assert spec["automountServiceAccountToken"] is False, where
    for _, objects in folders():
        accounts = {each["metadata"]["name"]: each for each in of_kind(objects, "ServiceAccount")}
        assert not any(each["automountServiceAccountToken"] for each in accounts.values())
        for each in of_kind(objects, "Deployment"):
            assert each["spec"]["template"]["spec"]["serviceAccountName"] in accounts


PEERS = {
    "a client that was let in": Pod({}, namespace("shop", **{"torchserve/clients": "allowed"})),
    "a client that was not": Pod({}, namespace("other")),
    "a job": Pod({"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "client"}, HERE),
    "a pod of the namespace": Pod({"app.kubernetes.io/name": "something"}, HERE),
    "an edge": Pod(EDGE, HERE),
    "a node": Pod(NODE, HERE),
    "Prometheus": Pod({"app.kubernetes.io/name": "prometheus"}, namespace("monitoring")),
    "a pod beside Prometheus": Pod({"app.kubernetes.io/name": "grafana"}, namespace("monitoring")),
}
OUTSIDE = Pod({}, {}, "203.0.113.7")


def test_policies_let_through_what_is_needed_and_nothing_else() -> None:
    wanted = {
        ("a client that was let in", "an edge", 8000), ("a client that was let in", "an edge", 8001),
        ("a job", "an edge", 8000), ("a job", "an edge", 8001),
        ("an edge", "a node", 8085),
        ("Prometheus", "an edge", 8002), ("Prometheus", "a node", 8085),
    }  # fmt: skip
    ports = (53, 443, 8000, 8001, 8002, 8003, 8080, 8081, 8082, 8085)
    targets = ("an edge", "a node", "a job", "a pod of the namespace")
    for name in RUN_ON:
        let = {
            (source, target, port)
            for source in PEERS
            for target in targets
            for port in ports
            if is_let(overlay(name), PEERS[source], PEERS[target], port)
        }
        assert let == wanted


def test_nodes_and_the_control_port_let_nobody_else_in_who_may_leave_its_own_pod() -> None:
    objects = overlay("cpu")
    assert {name for name, pod in PEERS.items() if is_let_in(objects, pod, PEERS["a node"], 8085)} == {
        "an edge", "Prometheus",
    }  # fmt: skip
    assert not any(is_let_in(objects, pod, PEERS["an edge"], 8003) for pod in PEERS.values())


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
def test_edges_and_jobs_reach_dns_and_nodes_reach_nothing(protocol: str) -> None:
    objects = overlay("cpu")
    dns = Pod({"k8s-app": "kube-dns"}, namespace("kube-system"))
    local = Pod({}, {}, "169.254.20.10")
    for server in (dns, local):
        assert is_let(objects, PEERS["an edge"], server, 53, protocol)
        assert is_let(objects, PEERS["a job"], server, 53, protocol)
        assert not is_let(objects, PEERS["a node"], server, 53, protocol)
    for source in ("an edge", "a node", "a job"):
        assert not is_let(objects, PEERS[source], OUTSIDE, 443)


def test_nodes_that_fetch_reach_the_store_and_not_the_machines_own_role() -> None:
    objects = component("models-fetch")
    assert is_let(objects, PEERS["a node"], OUTSIDE, 443)
    assert not is_let(objects, PEERS["a node"], OUTSIDE, 80)
    assert not is_let(objects, PEERS["a node"], Pod({}, {}, "169.254.169.254"), 443)
    assert not is_let(objects, PEERS["an edge"], OUTSIDE, 443)


# -- overlays and components ---------------------------------------------------------------------------------------


def test_images_are_the_one_that_is_built() -> None:
    found = {each["image"] for _, _, spec in pods() for each in [*spec.get("initContainers", []), *spec["containers"]]}
    assert found == {
        "torchserve-batching:0.3.0",
        "torchserve-batching:0.3.0-gpu",
        "models:1.0",
        "rclone/rclone:1.69.1",
    }


def test_a_gpu_is_asked_for_by_nodes_alone() -> None:
    node, edge = (container(overlay("gpu"), name) for name in ("node", "edge"))
    assert node["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert node["image"] == "torchserve-batching:0.3.0-gpu"
    assert edge["image"] == "torchserve-batching:0.3.0"
    assert "nvidia.com/gpu" not in edge["resources"]["limits"]
    spec = deployment(overlay("gpu"), "torchserve-node")["template"]["spec"]
    assert [each["key"] for each in spec["tolerations"]] == ["nvidia.com/gpu"]


def test_an_adaptive_pod_has_one_model_with_one_worker(tmp_path: Path) -> None:
    settings = configuration(overlay("adaptive"), tmp_path)
    [(name, versions)] = settings.models.items()
    [entry] = versions.values()
    assert (entry["minWorkers"], entry["maxWorkers"]) == (1, 1)
    assert packed(name, models()[name].config())["continuousBatching"] is True


def test_keda_scales_nodes_whose_number_nothing_else_says(tmp_path: Path) -> None:
    objects = overlay("keda")
    [scaled] = of_kind(objects, "ScaledObject")
    target = deployment(objects, scaled["spec"]["scaleTargetRef"]["name"])
    assert "replicas" not in target
    addresses = {trigger["metadata"]["serverAddress"] for trigger in scaled["spec"]["triggers"]}
    assert addresses == {"http://prometheus.monitoring:9090"}
    settings = configuration(objects, tmp_path)
    tune = json.loads((KUBERNETES / "overlays" / "keda" / "tune.json").read_text())
    assert set(settings.models) == {tune["model"]}
    [entry] = settings.models[tune["model"]].values()
    assert entry["batchSize"] == tune["advice"]["batch_size"]
    assert entry["maxBatchDelay"] == tune["advice"]["max_batch_delay_ms"]
    for trigger in scaled["spec"]["triggers"]:
        assert tune["model"] in trigger["metadata"]["query"]


@pytest.mark.parametrize("name", ["models-fetch", "models-image"])
def test_archives_come_from_one_place(name: str) -> None:
    objects = component(name)
    assert not of_kind(objects, "PersistentVolumeClaim")
    spec = deployment(objects, "torchserve-node")["template"]["spec"]
    [models_volume] = [volume for volume in spec["volumes"] if volume["name"] == "models"]
    assert set(models_volume) == {"name", {"models-fetch": "emptyDir", "models-image": "image"}[name]}
    [mount] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "models"]
    assert mount["mountPath"] == "/models"
    assert mount["readOnly"] is True


def test_archives_in_the_image_are_covered_by_no_volume() -> None:
    objects = component("models-baked")
    assert not of_kind(objects, "PersistentVolumeClaim")
    assert container(objects, "node")["image"] == "models:1.0"
    assert container(objects, "edge")["image"] == "torchserve-batching:0.3.0"
    assert "/models" not in [mount["mountPath"] for mount in container(objects, "node")["volumeMounts"]]


def test_keys_of_clients_come_from_a_secret() -> None:
    spec = deployment(component("client-keys"), "torchserve-edge")["template"]["spec"]
    [config] = [volume for volume in spec["volumes"] if volume["name"] == "config"]
    assert config == {"name": "config", "secret": {"secretName": "torchserve-edge", "defaultMode": 0o440}}


def test_kserves_pod_is_a_node_and_the_edge_that_speaks_version_two() -> None:
    [runtime] = of_kind(overlay("kserve"), "ServingRuntime")
    spec = runtime["spec"]
    assert spec["protocolVersions"] == ["v2"]
    assert spec["multiModel"] is False
    node, edge = spec["containers"]
    assert (node["name"], node["args"]) == ("kserve-container", ["node"])
    assert (edge["name"], edge["args"]) == ("transformer-container", ["edge"])
    # The first port becomes port 80 of KServe's service.
    assert [port["containerPort"] for port in edge["ports"]] == [8000, 8001, 8002]
    environment = {each["name"]: each["value"] for each in node["env"]}
    assert environment == {"MODEL_STORE": inference_services.STORE, "NODE_ADDRESS": "127.0.0.1"}
    for each in of_kind(overlay("kserve"), "InferenceService"):
        model = each["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        assert model["modelFormat"]["name"] in [known["name"] for known in spec["supportedModelFormats"]]
        assert model["protocolVersion"] in spec["protocolVersions"]
        assert each["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"


# -- the script of the init container ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status"), [(b"archive", 0), (b"archivf", 1), (None, 1)], ids=["right", "changed", "missing"]
)
def test_an_archive_is_fetched_only_with_its_own_sum(tmp_path: Path, content: bytes | None, status: int) -> None:
    """rclone stands in for itself as a copy of what is named: the script's own part is the list and the sums."""
    store, folder, commands = tmp_path / "store", tmp_path / "models", tmp_path / "bin"
    for each in (store, folder, commands):
        each.mkdir()
    if content is not None:
        (store / "a.mar").write_bytes(content)
    sums = tmp_path / "models.sha256"
    sums.write_text(f"{sha256(b'archive').hexdigest()}  a.mar\n")
    rclone = commands / "rclone"
    rclone.write_text('#!/bin/sh\nwhile read -r name; do cp "$STORE/$name" "$MODELS" || true; done < "$3"\n')
    rclone.chmod(0o755)
    script = KUBERNETES / "components" / "models-fetch" / "fetch.sh"
    done = subprocess.run(
        ["sh", str(script), str(sums), str(folder)],
        env={"PATH": f"{commands}:/usr/bin:/bin", "STORE": str(store), "MODELS": str(folder), "MODELS_FROM": "x:"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == status, done.stderr


def test_the_sums_of_the_fetched_are_of_the_archives_that_are_served(tmp_path: Path) -> None:
    objects = component("models-fetch")
    sums = one(objects, "ConfigMap", "torchserve-fetch")["data"]["models.sha256"]
    assert re.findall(r"^[0-9a-f]{64}  (\S+)$", sums, re.MULTILINE) == [*configuration(objects, tmp_path).load_models]
