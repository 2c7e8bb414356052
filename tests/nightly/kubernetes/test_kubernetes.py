"""deploy/kubernetes, rendered by kubectl: valid objects, which agree with each other and with the programs they run."""

import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.archives.mode import complete_config
from deploy.gateway.envoy.listeners import HEAP_BYTES
from deploy.gateway.settings import GatewaySettings, read_settings
from deploy.gateway.supervisor import STOP_S
from deploy.hosts.serve.__main__ import main as serve
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.process import LATE_S
from deploy.models import models
from deploy.nodes.container import envoy as node_envoy
from deploy.nodes.container.node import LAST_RESPONSE_S
from deploy.nodes.container.settings import NOTICE_S, PORT
from deploy.nodes.run.properties import MIB, ServerSettings
from handlers.metrics import QUEUE_DEPTH
from tests.deploy.test_kubernetes import KUBERNETES, ROLE, matches
from tests.e2e.conftest import printed
from tests.nightly.kubernetes import schemas
from tests.nightly.kubernetes.schemas import TOOLS, Object, group
from torchserve_client.version import VERSION

# One archive in one process; it is not part of an overlay.
HOST = KUBERNETES / "host"
OVERLAYS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml")))
COMPONENTS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml")))
# Bytes beside the heap and direct memory: Java's classes, threads and code; a node's Envoy and Python. Of a worker:
# 1,038 MB measured of ResNet-152, the largest of the examples; its second copy of the weights in adaptive mode. Of an
# edge beside Envoy's heap.
BESIDE, WORKER, SECOND_COPY, CONTROL = 1024 * MIB, 1100 * MIB, 250 * MIB, 300 * MIB
SLOWEST_S = max(float(model.config().get("responseTimeout", 120)) for model in models().values())


@functools.cache
def rendered(folder: Path) -> list[Object]:
    assert (TOOLS / "kubectl").exists(), "make packages fetches kubectl (tests/nightly/packages/kubernetes.sh)"
    return list(yaml.safe_load_all(printed(TOOLS / "kubectl", "kustomize", folder, timeout=60)))


def overlay(name: str) -> list[Object]:
    return rendered(KUBERNETES / "overlays" / name)


@functools.cache
def component(name: str) -> list[Object]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text).resolve()
        base, own = (os.path.relpath(KUBERNETES / place, folder) for place in ("base", f"components/{name}"))
        head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: torchserve\n"
        (folder / "kustomization.yaml").write_text(f"{head}resources: [{base}]\ncomponents: [{own}]\n")
        return rendered(folder)


def deployed() -> Iterator[tuple[str, list[Object]]]:
    yield from ((f"overlays/{name}", overlay(name)) for name in OVERLAYS if name != "kserve")
    yield from ((f"components/{name}", component(name)) for name in COMPONENTS)
    yield "jobs", [*overlay("cpu"), *rendered(KUBERNETES / "jobs")]


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def one(objects: Sequence[Object], kind: str, name: str) -> Any:
    """The object of a kind and a name; a generated one by its name without the hash."""
    named = [(each, each["metadata"]["name"]) for each in of_kind(objects, kind)]
    (found,) = (each for each, own in named if name in (own, own.rpartition("-")[0]))
    return found


def pod(objects: Sequence[Object], role: str) -> Any:
    return one(objects, "Deployment", f"torchserve-{role}")["spec"]["template"]["spec"]


def container(objects: Sequence[Object], role: str) -> Any:
    (found,) = pod(objects, role)["containers"]
    return found


def size(text: str) -> int:
    return int(text[:-2]) * {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[text[-2:]]


def test_every_object_is_valid() -> None:
    plain = [KUBERNETES / "jobs" / "claims.yaml", *sorted(KUBERNETES.glob("components/*/*.example.yaml"))]
    folders = [*deployed(), ("overlays/kserve", overlay("kserve")), ("host", rendered(HOST))]
    folders += [(path.name, list(yaml.safe_load_all(path.read_text()))) for path in plain]
    typed, served = list[Object](), list[Object]()
    for where, each in ((where, each) for where, objects in folders for each in objects):
        if schemas.is_core(each):
            # Image volumes came with 1.31.
            for version in (schemas.NEWEST, *((schemas.OLDEST,) if "models-image" not in where else ())):
                assert schemas.core_problem(json.dumps(each, sort_keys=True), version) == "", (where, each["metadata"])
        else:
            (typed if group(each) in schemas.TYPES else served).append(each)
    assert {each["kind"] for each in typed} == {"PodMonitor", "PrometheusRule", "ScaledObject"}
    assert schemas.typed_problems(typed) == []
    assert {each["kind"] for each in served} == {"ServingRuntime", "InferenceService"}
    assert [found for each in served for found in schemas.kserve_problems(each)] == []


def test_what_selects_pods_selects_one_deployment_and_names_its_ports() -> None:
    for where, objects in [*deployed(), ("host", rendered(HOST))]:
        templates = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(objects, "Deployment")]
        for each in of_kind(objects, "Service", "PodDisruptionBudget", "PodMonitor", "Deployment"):
            selector = each["spec"]["selector"]
            selector = {"matchLabels": selector} if each["kind"] == "Service" else selector
            (labels,) = [labels for labels in templates if matches(selector, labels)]
            assert labels[ROLE] == each["metadata"]["labels"][ROLE]
            named = each["spec"].get("ports", []) + each["spec"].get("podMetricsEndpoints", [])
            ports = {port["name"] for port in container(objects, labels[ROLE])["ports"]}
            assert {port.get("targetPort") or port["port"] for port in named} <= ports, (where, each["metadata"])


def test_ports_probes_and_commands_are_those_of_the_programs() -> None:
    ports = GatewaySettings().ports
    edge_ports = {name: getattr(ports, name) for name in ("http", "grpc", "metrics", "control", "probe")}
    hosts = node_envoy.make_routes(node_envoy.NodeStatus())["virtual_hosts"]
    answered = {route["match"].get("path") for host in hosts for route in host["routes"]}
    open_paths = {"/", "/v2/health/live", "/v2/health/ready"}
    for where, objects in deployed():
        # No client's load reaches an edge's probe.
        for role, port, wanted, paths in (
            ("node", "node", {"node": PORT}, answered),
            ("edge", "probe", edge_ports, open_paths),
        ):
            each = container(objects, role)
            assert {port["name"]: port["containerPort"] for port in each["ports"]} == wanted, where
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = each[kind]["httpGet"]
                assert asked["port"] == port and asked["path"] in {*paths, "/live"}, where
        discover = yaml.safe_load(one(objects, "ConfigMap", "torchserve-edge")["data"]["gateway.yaml"])["discover"]
        service = one(objects, "Service", discover["host"])["spec"]
        assert service["clusterIP"] == "None"
        assert [port["port"] for port in service["ports"]] == [discover["port"]] == [PORT]
    node = container(overlay("cpu"), "node")
    assert (node["readinessProbe"]["httpGet"]["path"], node["livenessProbe"]["httpGet"]["path"]) == ("/ready", "/live")


def test_host_is_asked_at_its_ports_and_scaled_by_a_metric_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = rendered(HOST)
    each = container(objects, "host")
    options, ports = each["args"], {port["name"]: port["containerPort"] for port in each["ports"]}
    assert ports == {"http": 8080, "grpc": int(options[options.index("--grpc-port") + 1])}
    monkeypatch.setattr("sys.argv", ["serve", *options, "--help"])
    with pytest.raises(SystemExit, match="0"):
        serve()
    asked = [each[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    # While it ends it is not ready, and lives.
    paths = ("/v2/health/live", "/ping", "/v2/health/live")
    assert [(found["port"], found["path"]) for found in asked] == [("http", path) for path in paths]
    assert pod(objects, "host")["terminationGracePeriodSeconds"] > HostLimits().drain_s + LATE_S
    (scaled,) = of_kind(objects, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == one(objects, "Deployment", "torchserve-host")["metadata"]["name"]
    (trigger,) = scaled["spec"]["triggers"]
    assert {*re.findall(r"handler_\w+", trigger["metadata"]["query"])} == {QUEUE_DEPTH.sum.name, QUEUE_DEPTH.count.name}
    named = set(re.findall(r'ModelName="([^"]+)"', trigger["metadata"]["query"]))
    assert named == {Path(options[0]).stem} <= models().keys()


def test_grace_covers_a_drain_and_an_update_takes_no_replica_away() -> None:
    drain_s = NOTICE_S + SLOWEST_S + LAST_RESPONSE_S + 30
    for _, objects in deployed():
        assert pod(objects, "node")["terminationGracePeriodSeconds"] >= drain_s
        edge = pod(objects, "edge")
        word, seconds = edge["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert word == "sleep"
        limit_s = GatewaySettings().limits.response_s
        assert edge["terminationGracePeriodSeconds"] >= int(seconds) + limit_s + STOP_S + 10
        for each in of_kind(objects, "Deployment"):
            assert each["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (runtime,) = of_kind(overlay("kserve"), "ServingRuntime")
    word, seconds = runtime["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    for each in of_kind(overlay("kserve"), "InferenceService"):
        assert int(seconds) + drain_s <= each["spec"]["predictor"]["terminationGracePeriodSeconds"]


def test_pods_mount_what_there_is_and_are_of_a_restricted_namespace() -> None:
    claims = {"bulk-inputs", "bulk-answers", "torchserve-models"}
    images = {f"torchserve-batching:{VERSION}", f"torchserve-batching-host:{VERSION}"}
    images |= {"models:1.0"}  # another's image has a digest
    (runtime,) = of_kind(overlay("kserve"), "ServingRuntime")
    pods = [("overlays/kserve", runtime["metadata"]["labels"], runtime["spec"])]
    for where, objects in [*deployed(), ("host", rendered(HOST))]:
        templates = (each["spec"]["template"] for each in of_kind(objects, "Deployment", "Job"))
        pods += [(where, each["metadata"]["labels"], each["spec"]) for each in templates]
    for where, labels, spec in pods:
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        names = {each["image"].removesuffix("-gpu") for each in containers}
        assert {name for name in names if "@sha256:" not in name} <= images, where
        if labels[ROLE] in ("node", "runtime", "host"):
            # Whole cores, and what is asked for is what there is.
            resources = spec["containers"][0]["resources"]
            assert resources["requests"] == resources["limits"], where
            assert resources["limits"]["cpu"].isdecimal(), where
        if labels[ROLE] != "runtime":
            assert spec["automountServiceAccountToken"] is False, where
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        # KServe's runtime has `config` from each InferenceService.
        mounted = {mount["name"] for each in containers for mount in each["volumeMounts"]}
        assert mounted - {"config"} == volumes.keys() - {"config"}, where
        assert {each["persistentVolumeClaim"]["claimName"] for each in volumes.values()
                if "persistentVolumeClaim" in each} <= claims  # fmt: skip
        sizes = [size(each["emptyDir"]["sizeLimit"]) for each in volumes.values() if "emptyDir" in each]
        assert sum(sizes) <= sum(size(each["resources"]["limits"]["ephemeral-storage"]) for each in spec["containers"])
    for _, objects in [*deployed(), ("", overlay("kserve"))]:
        assert not of_kind(objects, "Secret")
        for each in of_kind(objects, "Namespace"):
            assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_nodes_and_edges_read_their_settings_and_have_their_memory(tmp_path: Path) -> None:
    found = [
        (where, one(objects, "ConfigMap", "torchserve-node")["data"], container(objects, "node"), objects)
        for where, objects in deployed()
    ]
    (runtime,) = of_kind(overlay("kserve"), "ServingRuntime")
    for each in of_kind(overlay("kserve"), "InferenceService"):
        data = one(overlay("kserve"), "ConfigMap", f"torchserve-{each['metadata']['name']}")["data"]
        found.append((each["metadata"]["name"], data, runtime["spec"]["containers"][0], overlay("kserve")))
    for where, data, its, objects in found:
        (tmp_path / "config.properties").write_text(data["config.properties"])
        settings = ServerSettings.read(tmp_path / "config.properties")
        assert not settings.has_model_api, where
        assert {file.removesuffix(".mar") for file in settings.load_models} == set(settings.models), where
        entries = [(name, entry) for name, versions in settings.models.items() for entry in versions.values()]
        copies = sum(SECOND_COPY for name, _ in entries if complete_config(models()[name]).get("continuousBatching"))
        workers = sum(int(entry["maxWorkers"]) for _, entry in entries) * WORKER + copies
        whole = (settings.heap_bytes or 0) + (settings.direct_bytes or 0) + BESIDE + workers
        assert whole <= size(its["resources"]["limits"]["memory"]), where
        (gateway,) = [each for each in of_kind(objects, "ConfigMap") if "gateway.yaml" in each["data"]]
        (tmp_path / "gateway.yaml").write_text(gateway["data"]["gateway.yaml"])
        assert read_settings(tmp_path / "gateway.yaml").ports.control_address == "127.0.0.1"
    assert size(container(overlay("cpu"), "edge")["resources"]["limits"]["memory"]) >= HEAP_BYTES + CONTROL
    # The example of a Secret is a configuration, without a real key.
    (path,) = KUBERNETES.glob("components/client-keys/*.example.yaml")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_load(path.read_text())["stringData"]["gateway.yaml"])
    (tmp_path / "gateway.yaml").chmod(0o440)
    assert all("REPLACE" in key.key for key in read_settings(tmp_path / "gateway.yaml").keys)


@pytest.mark.parametrize(("content", "status"), [(b"archive", 0), (b"archivf", 1), (None, 1)])
def test_an_archive_is_fetched_only_with_its_own_sum(tmp_path: Path, content: bytes | None, status: int) -> None:
    """rclone stands in for itself as a copy of what is named: the script's own part is the list and the sums."""
    for name in ("store", "models", "bin"):
        (tmp_path / name).mkdir()
    if content is not None:
        (tmp_path / "store" / "a.mar").write_bytes(content)
    (tmp_path / "sums").write_text(f"{sha256(b'archive').hexdigest()}  a.mar\n")
    rclone = tmp_path / "bin" / "rclone"
    rclone.write_text('#!/bin/sh\nwhile read -r name; do cp "$STORE/$name" "$MODELS" || true; done < "$3"\n')
    rclone.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "STORE": f"{tmp_path}/store", "MODELS_FROM": "x:"}
    environment["MODELS"] = f"{tmp_path}/models"
    script = KUBERNETES / "components" / "models-fetch" / "fetch.sh"
    words = ["sh", str(script), f"{tmp_path}/sums", f"{tmp_path}/models"]
    done = subprocess.run(words, env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
