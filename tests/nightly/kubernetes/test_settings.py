"""What the programs of deploy/kubernetes are configured with, and the memory and rights that it takes, is so."""

from pathlib import Path

import pytest
import yaml

from deploy import inference_services
from deploy.container.settings import PORT
from deploy.gateway.envoy.bootstrap import HEAP_BYTES
from deploy.gateway.settings import read as read_gateway
from deploy.memory import need
from deploy.models import models
from deploy.modes import archived
from deploy.properties import Settings
from tests.nightly.kubernetes.described import (
    BESIDE,
    CONTROL,
    JAVA_REST,
    SECOND_COPY,
    WORKER,
    configuration,
    container,
    folders,
    pods,
    served,
    size,
)
from tests.nightly.kubernetes.rendered import (
    KUBERNETES,
    of_kind,
    one,
    overlay,
    title,
)

pytestmark = pytest.mark.kubectl


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
        copies = (SECOND_COPY if archived(models()[name]).get("continuousBatching") else 0 for name, _ in entries)
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
