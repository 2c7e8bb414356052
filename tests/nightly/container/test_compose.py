"""compose.yaml as its own program reads it, and what it names: files, ports, commands and limits that fit the rest.

What no test here can show is a daemon that starts it; test_image.py runs our services' commands out of the image.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.gateway.settings import read
from deploy.memory import Served, too_little
from deploy.models import ROOT, model
from deploy.properties import Settings
from tests.nightly.container.services import COMPOSE, seconds, services
from torchserve_client.version import VERSION

CONTAINER = ROOT / "deploy" / "container"
OURS = {"archives", "torchserve-nodes", "gateway", "first-prediction"}
KEPT = {"torchserve-nodes", "gateway", "prometheus", "grafana"}
# Of config.properties and archives: what deploy.container adds to the longest responseTimeout as it drains, and ends.
END_S = 30.0


def config(*files: Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What Docker's program says of compose files, without a daemon."""
    words = [word for file in files for word in ("-f", str(file))]
    return subprocess.run(["docker-compose", *words, "config"], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("more", [[], [CONTAINER / "compose.gpu.yaml"]], ids=["cpu", "gpu"])
def test_compose_reads_it(more: list[Path]) -> None:
    said = config(COMPOSE, *more)
    assert said.returncode == 0, said.stderr
    assert set(yaml.safe_load(said.stdout)["services"]) == OURS | {"prometheus", "grafana"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("read_only: true", "read_onlyy: true"),
        ("condition: service_healthy", "condition: service_health"),
        ("replicas: 2", "replicas: two"),
        ("- models:/models:ro", "- model:/models:ro"),
    ],
)
def test_compose_refuses_what_is_wrong(right: str, wrong: str, tmp_path: Path) -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong, 1))
    assert config(tmp_path / "compose.yaml", cwd=tmp_path).returncode != 0


def test_services_have_no_rights_and_nothing_to_write_to() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert (service["restart"] == "unless-stopped") is (name in KEPT), name
        assert ("pids_limit" in service) or name not in KEPT, name


def test_ports_are_published_on_this_machine_alone() -> None:
    published = [port for service in services().values() for port in service.get("ports", ())]
    assert sorted(port.rpartition(":")[2] for port in published) == ["3000", "8000", "8001", "9090"]
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_images_are_named_with_a_version() -> None:
    for name, service in services().items():
        image, _, version = service["image"].rpartition(":")
        if name in OURS:
            assert (image, version) == ("torchserve-batching", VERSION)
        else:
            assert image.startswith("docker.io/")
            assert version[-1].isdigit()


def test_what_is_mounted_is_there() -> None:
    named = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["volumes"]
    for service in services().values():
        for volume in service.get("volumes", ()):
            source, path, *mode = volume.split(":")
            assert Path(path).is_absolute()
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert mode == ["ro"], source
            else:
                assert source in named


def test_who_waits_for_whom_can_be_waited_for() -> None:
    """A service that others wait for to be healthy has a check; one that must complete ends by itself."""
    everyone = services()
    for service in everyone.values():
        for name, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert everyone[name]["healthcheck"]["test"]
            if wanted["condition"] == "service_completed_successfully":
                assert everyone[name]["restart"] == "no"


def test_builds_of_ours_are_of_files_that_are_there() -> None:
    build = services()["archives"]["build"]
    text = (ROOT / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    assert all(f"\nARG {name}=" in text for name in build["args"])
    for service in services().values():
        if (health := service["healthcheck"].get("test")) and "python3" in health:
            assert (ROOT / health[-1].removeprefix("/app/")).is_file()


def test_commands_are_those_of_the_entrypoint() -> None:
    text = (CONTAINER / "entrypoint.sh").read_text(encoding="utf-8")
    commands = [line.split(")")[0].strip().split(" | ") for line in text.splitlines() if line.endswith(";;")]
    known = {word for words in commands for word in words}
    assert {services()[name]["command"][0] for name in OURS - {"first-prediction"}} <= known
    assert shutil.which(services()["first-prediction"]["command"][0]) is not None


def test_gateway_finds_the_nodes_by_the_name_of_their_service() -> None:
    settings = read(CONTAINER / "gateway.yaml")
    assert settings.discover is not None
    assert settings.discover.host in services()
    assert settings.discover.port == 8085
    ports = {port.rpartition(":")[2] for port in services()["gateway"]["ports"]}
    assert ports == {str(settings.ports.http), str(settings.ports.grpc)}
    # Prometheus is elsewhere, and asks the port of the metrics.
    assert settings.ports.internal_address == "0.0.0.0"  # noqa: S104
    assert settings.limits.response_s < seconds(services()["gateway"]["stop_grace_period"])


def test_prometheus_asks_the_gateway_and_grafana_prometheus() -> None:
    scraped = _yaml(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    targets = [target for job in scraped for each in job["static_configs"] for target in each["targets"]]
    assert targets == [f"gateway:{read(CONTAINER / 'gateway.yaml').ports.metrics}"]
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = _yaml(next((provisioning / "datasources").glob("*.yml")))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = _yaml(next((provisioning / "dashboards").glob("*.yml")))["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services()["grafana"]["volumes"]}
    home = services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    folder = ROOT / mounted[provider["options"]["path"]]
    assert json.loads((folder / Path(home).name).read_text(encoding="utf-8"))["title"]


def test_archives_are_those_that_the_nodes_name() -> None:
    built = services()["archives"]["command"][1:]
    settings = Settings.read(CONTAINER / "config.properties")
    assert list(settings.load_models) == [f"{name}.mar" for name in built]
    assert {name: list(versions) for name, versions in settings.models.items()} == {
        name: [model(name).version] for name in built
    }
    # Weights come with the environment: a first start needs no network but the registries'.
    assert all("package" in model(name).weights for name in built)


def test_nodes_settings_hold_what_may_queue() -> None:
    settings = Settings.read(CONTAINER / "config.properties")
    served = [
        Served(settings.job_queue_size, entry["batchSize"] * entry["maxWorkers"])
        for versions in settings.models.values()
        for entry in versions.values()
    ]
    assert too_little(settings, served) is None
    assert settings.heap_bytes is not None
    assert settings.direct_bytes is not None
    assert (settings.heap_bytes + settings.direct_bytes) < _bytes(services()["torchserve-nodes"]["mem_limit"]) * 0.6
    assert settings.max_request_size == read(CONTAINER / "gateway.yaml").limits.body_bytes


def test_nodes_have_the_time_to_drain() -> None:
    """The longest that a model may take for an answer, and what comes before and after."""
    longest = max(model(name).config()["responseTimeout"] for name in services()["archives"]["command"][1:])
    grace_s = seconds(services()["torchserve-nodes"]["stop_grace_period"])
    assert grace_s >= longest + END_S


def _bytes(text: str) -> int:
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]


def _yaml(path: Path) -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded
