"""models.yaml -> Serve's configuration; Serve itself reads it in tests/nightly/ray."""

import json
import zipfile
from pathlib import Path

import pytest
import yaml

from deploy.hosts.ray.settings import read
from deploy.models import ROOT
from handlers.errors import InvalidConfig
from tests.tables import table


def archive(folder: Path, name: str, **handler: object) -> str:
    path = folder / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": name, "handler": "h.py"}}))
        content.writestr("model-config.yaml", yaml.safe_dump({"handler": handler}))
    return str(path)


def config(folder: Path, **settings: object) -> Path:
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_each_archive_is_an_application_with_its_own_limits(tmp_path: Path) -> None:
    limits = {"max_batch_items": 16, "scheduling": {"max_queue_items": 100}}
    first, second = archive(tmp_path, "a"), archive(tmp_path, "b", **limits)
    models = [{"archive": first, "replicas": 2, "cpus": 1.5}, {"archive": second, "replicas": [1, 4], "gpus": 1}]
    found = read(config(tmp_path, models=models, invocations="a", port=9000))
    a, b, routes = found["applications"]
    assert [each["route_prefix"] for each in (a, b, routes)] == ["/predictions/a", "/predictions/b", "/"]
    assert a["args"] == {"host": "127.0.0.1", "archive": str(tmp_path / "a.mar"), "threads": 2, "gpu": False}
    (deployment,) = a["deployments"]
    assert (deployment["num_replicas"], deployment["max_ongoing_requests"]) == (2, 1024)
    assert deployment["ray_actor_options"] == {"num_cpus": 1.5, "num_gpus": 0.0}
    (deployment,) = b["deployments"]
    scaling = deployment["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"], scaling["target_ongoing_requests"]) == (1, 4, 16)
    assert (deployment["max_ongoing_requests"], b["args"]["gpu"]) == (200, True)
    assert routes["args"]["models"] == ["a", "b"]
    assert found["http_options"] == {"host": "127.0.0.1", "port": 9000}
    assert yaml.safe_load(yaml.safe_dump(found)) == found


def test_model_may_have_its_own_threads_and_target_and_routes_their_preferred_models(tmp_path: Path) -> None:
    model = {"archive": archive(tmp_path, "a"), "replicas": [1, 2], "ongoing_requests": 3, "threads": 0, "cpus": 4}
    found, routes = read(config(tmp_path, models=[model], default_models=["a"], body_bytes=9))["applications"]
    assert (found["deployments"][0]["autoscaling_config"]["target_ongoing_requests"], found["args"]["threads"]) == (
        3,
        0,
    )
    own = {"models": ["a"], "invocations": None, "body_bytes": 9, "preferred": ("a",)}
    assert {name: routes["args"][name] for name in own} == own


@table(
    ({}, "models"),
    ({"models": []}, "models"),
    ({"models": [{"archive": "nothing.mar"}]}, "no such archive"),
    ({"models": [{"archive": "a", "replica": 1}]}, "replica"),
    ({"models": [{"archive": "a", "replicas": 0}]}, "replicas"),
    ({"models": [{"archive": "a"}], "port": 0}, "port"),
)
def test_wrong_settings_are_one_error_that_names_them(settings: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=named):
        read(config(tmp_path, **settings))


def test_two_archives_of_one_name_and_a_missing_list_are_errors_that_name_it(tmp_path: Path) -> None:
    models = [{"archive": archive(tmp_path, "a")}] * 2
    with pytest.raises(InvalidConfig, match="different models"):
        read(config(tmp_path, models=models))
    with pytest.raises(InvalidConfig, match="invocations to be one"):
        read(config(tmp_path, models=models[:1], invocations="b"))
    with pytest.raises(InvalidConfig, match=r"^no file .*none\.yaml; "):
        read(tmp_path / "none.yaml")


def test_manifest_of_kuberay_has_the_configuration_and_the_environment_of_this_version(tmp_path: Path) -> None:
    service = next(yaml.safe_load_all((ROOT / "deploy/kubernetes/ray/rayservice.yaml").read_text()))
    models = [{"archive": archive(tmp_path, "mobilenet-v2"), "replicas": [1, 4], "cpus": 2}]
    expected = read(config(tmp_path, models=models, host="0.0.0.0"))  # noqa: S104
    expected["applications"][0]["args"]["archive"] = "/models/mobilenet-v2.mar"
    assert yaml.safe_load(service["spec"]["serveConfigV2"]) == expected
    lines = (ROOT / "deploy/hosts/ray/ray.env").read_text().splitlines()
    variables = dict(line.replace('"', "").split("=", 1) for line in lines if not line.startswith("#"))
    # The operator sets the first, and the second is for one machine.
    del variables["RAY_AUTH_MODE"], variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
    pods = [service["spec"]["rayClusterConfig"]["headGroupSpec"]]
    pods += service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    for pod in pods:
        (container,) = pod["template"]["spec"]["containers"]
        assert {each["name"]: each["value"] for each in container["env"]}.items() >= variables.items()
