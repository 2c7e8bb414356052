"""compose.yaml and the Containerfiles: read by their own programs, and agreeing with what they name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deploy.gateway.settings import read_settings
from deploy.models import ROOT, model
from deploy.nodes.run.properties import ServerSettings
from tests.e2e.conftest import printed
from tests.nightly.container.test_image import SERVICES
from torchserve_client.version import VERSION

COMPOSE, CONTAINER = ROOT / "compose.yaml", ROOT / "deploy" / "nodes" / "container"
OURS = {"archives", "torchserve-nodes", "gateway", "first-prediction"}
KEPT = {"torchserve-nodes", "gateway", "prometheus", "grafana"}
# The seconds that deploy.nodes.container adds to the longest responseTimeout for draining and ending.
END_S = 30.0


def config(*files: Path) -> subprocess.CompletedProcess[str]:
    """Return the output of Docker's program for compose files, without a daemon."""
    words = ["docker-compose", *(word for file in files for word in ("-f", str(file))), "config"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def seconds(service: str) -> float:
    return float(SERVICES[service]["stop_grace_period"].removesuffix("s"))


@pytest.mark.parametrize("more", [[], [CONTAINER / "compose.gpu.yaml"]], ids=["cpu", "gpu"])
def test_compose_reads_it_and_refuses_a_misspelled_field(more: list[Path], tmp_path: Path) -> None:
    found = config(COMPOSE, *more)
    assert found.returncode == 0, found.stderr
    assert set(yaml.safe_load(found.stdout)["services"]) == OURS | {"prometheus", "grafana"}
    (tmp_path / "compose.yaml").write_text(COMPOSE.read_text().replace("read_only: true", "read_onlyy: true", 1))
    assert config(tmp_path / "compose.yaml", *more).returncode != 0


@pytest.mark.parametrize("path", sorted(CONTAINER.glob("*Containerfile")), ids=lambda path: path.name)
def test_linter_has_nothing_against_a_containerfile(path: Path) -> None:
    assert printed(Path(sys.executable).with_name("hadolint"), "--failure-threshold", "style", path) == ""
    assert set(re.findall(r'(?:torchserve-batching:|image\.version=")(\d[^\s"]+)', path.read_text())) <= {VERSION}


def test_services_have_no_rights_publish_on_loopback_and_mount_what_is_there() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert sorted(published) == [f"127.0.0.1:{port}:{port}" for port in (3000, 8000, 8001, 9090)]
    for name, service in SERVICES.items():
        rights = (service["read_only"], service["cap_drop"], service["security_opt"])
        assert rights == (True, ["ALL"], ["no-new-privileges:true"]) and service["mem_limit"], name
        assert (service["restart"] == "unless-stopped") is (name in KEPT), name
        image = service["image"]
        assert image == f"torchserve-batching:{VERSION}" if name in OURS else re.search(r":v?\d[^@]+@sha256:", image)
        for volume in service.get("volumes", ()):
            source, _, *mode = volume.split(":")
            if source.startswith("./"):
                assert ((ROOT / source).exists(), mode) == (True, ["ro"]), source
            else:
                assert source in yaml.safe_load(COMPOSE.read_text())["volumes"]
        for other, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"]
            if wanted["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no"


def test_nodes_serve_what_is_built_have_its_memory_and_the_time_to_drain() -> None:
    built, nodes = SERVICES["archives"]["command"][1:], SERVICES["torchserve-nodes"]
    settings, gateway = ServerSettings.read(CONTAINER / "config.properties"), read_settings(CONTAINER / "gateway.yaml")
    assert list(settings.load_models) == [f"{name}.mar" for name in built]
    versions = {name: list(entry) for name, entry in settings.models.items()}
    assert versions == {name: [model(name).version] for name in built}
    # Weights come with the environment: a first start needs no network but the registries'.
    assert all("package" in model(name).weights for name in built)
    limit = int(nodes["mem_limit"].removesuffix("g")) << 30
    assert (settings.heap_bytes or 0) + (settings.direct_bytes or 0) < limit * 0.6
    assert settings.max_request_size == gateway.limits.body_bytes
    longest = max(model(name).config()["responseTimeout"] for name in built)
    assert seconds("torchserve-nodes") >= longest + END_S
    assert seconds("gateway") > gateway.limits.response_s
