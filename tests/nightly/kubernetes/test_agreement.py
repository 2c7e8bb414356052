"""What the objects of deploy/kubernetes say of each other, and of the programs that they run, is so."""

import re

import pytest
import yaml

from deploy import inference_services, prometheus_rules
from deploy.container import envoy as node_envoy
from deploy.container.drain import QUIET_S
from deploy.container.node import LAST_ANSWER_S
from deploy.container.settings import NOTICE_S, PORT
from deploy.gateway.envoy.routes import OPEN
from deploy.gateway.settings import Settings as GatewaySettings
from deploy.gateway.supervisor import STOP_S
from deploy.models import models
from tests.nightly.kubernetes.described import container, deployment, folders, pods
from tests.nightly.kubernetes.flows import matches
from tests.nightly.kubernetes.rendered import (
    component,
    of_kind,
    one,
    overlay,
    title,
)

pytestmark = pytest.mark.kubectl


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
