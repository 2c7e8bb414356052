"""The images, the GPUs, the scaling and the archives of deploy/kubernetes are those that there are."""

import json
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from deploy import inference_services
from deploy.models import models
from deploy.modes import archived
from tests.nightly.kubernetes.described import (
    configuration,
    container,
    deployment,
    pods,
)
from tests.nightly.kubernetes.rendered import (
    KUBERNETES,
    component,
    of_kind,
    one,
    overlay,
)

pytestmark = pytest.mark.kubectl


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
    assert archived(models()[name])["continuousBatching"] is True


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
