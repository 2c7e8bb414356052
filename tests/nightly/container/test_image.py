"""The image, built, and compose.yaml's services run out of it for real: two models on two nodes behind the gateway.

built once -> archives -> two nodes -> gateway -> first prediction -> a stop under load -> a Java that is killed
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from deploy.lock import blocks
from deploy.models import ROOT
from load.generate.inputs import Inputs
from tests.e2e.loads import all_answered, under_load
from tests.nightly.container.engine import BUILD, MODELS, SERVICES, TAG, Container, Engine, Image, built, run
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.version import VERSION

# The first test's has the build in it: three minutes of two cores, and ten where others work on them.
pytestmark = [pytest.mark.timeout(3600)]

# Requests a second: what two busy cores can do while a node ends, so that nothing waits in a queue until it is full.
RATE_PER_S = 4.0
READY_S = 240.0
# Requests that a node has in hand when it is told to end: more than one batch.
IN_HAND = 24
INPUTS = Inputs.of([photograph("chelsea"), photograph("coffee")], "image/jpeg")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built() as made:
        yield made


@dataclass(frozen=True)
class Up:
    """What `docker compose up` would have started, without Prometheus and Grafana."""

    engine: Engine
    nodes: list[Container]
    gateway: Container

    @property
    def url(self) -> str:
        return f"http://{self.gateway.address}:8000"


@pytest.fixture(scope="module")
def up(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Engine(image, tmp_path_factory.mktemp("engine")) as made:
        archives = made.start("archives")
        assert archives.process.wait(READY_S) == 0, archives.printed()
        nodes = [made.start("torchserve-nodes") for _ in range(SERVICES["torchserve-nodes"]["deploy"]["replicas"])]
        for node in nodes:
            until(node.is_healthy, READY_S)
        gateway = made.start("gateway", {"torchserve-nodes": [node.address for node in nodes]})
        until(gateway.is_healthy, READY_S)
        yield Up(made, nodes, gateway)


def test_image_has_what_serves_in_the_versions_of_the_lock_and_nothing_else(image: Image, tmp_path: Path) -> None:
    config = image.config
    assert (config["User"], config["WorkingDir"], config["Cmd"]) == ("1000:1000", "/app", ["node"])
    assert (config["StopSignal"], config["Entrypoint"][:2]) == ("SIGTERM", ["tini", "--"])
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert {"8085/tcp", "8000/tcp"} <= config["ExposedPorts"].keys()
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert (labels["version"], labels["revision"], labels["licenses"]) == (VERSION, "tested", "Apache-2.0")
    assert [name for name in ("java", "envoy", "torchserve", "torchserve-client", "tini") if not image.has(name)] == []
    assert [name for name in ("gcc", "cc", "make", "pip", "pip3", "uv", "git") if image.has(name)] == []
    code = "import importlib.util as u; print([n for n in ('pip', 'ensurepip', 'pytest', 'mypy') if u.find_spec(n)])"
    assert image.python(code) == "[]"

    def plain(pin: str) -> str:
        name, _, version = pin.partition("==")
        return f"{re.sub('[-_.]+', '-', name.lower())}=={version}"

    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = {plain(pin) for pin in image.python(code).split()}
    locked = {plain(pin) for pin in blocks((ROOT / "requirements-server.lock").read_text())}
    assert installed - locked == {f"torchserve-client=={VERSION}"}
    names = {path.name for path in (image.root / "app").iterdir()}
    assert names >= {"handlers", "deploy", "client", "examples"}
    assert names & {".git", ".venv", ".uv", "tests", "model_store", "build", "key_file.json", "logs"} == set()
    # docs/containers.md has the figure: what grows by a tenth is noticed. MiB.
    assert int(run("du", "--summarize", "--block-size=1M", "--one-file-system", image.root).split()[0]) < 7000
    # Archives baked in, with their configuration.
    for name in ("shipped.mar", "left.txt", "config.properties"):
        (tmp_path / name).write_text(name)
    tag = f"{TAG}-models"
    image.store.buildah(*BUILD, "--build-arg", f"IMAGE={TAG}", "--file", MODELS, "--tag", tag, tmp_path)
    _, root = image.store.mounted(tag)
    assert [path.name for path in (root / "models").iterdir()] == ["shipped.mar"]
    assert (root / "etc/torchserve/config.properties").read_text() == "config.properties"


def test_first_prediction_is_printed_and_a_node_lets_through_what_it_should(up: Up) -> None:
    asked = up.engine.start("first-prediction", {"gateway": [up.gateway.address]})
    assert asked.process.wait(120) == 0, asked.printed()
    assert "espresso" in asked.printed()
    assert "384 numbers" in asked.printed()
    # The access log is what the gateway's container prints: a file on a tmpfs would fill its memory.
    until(lambda: {"mobilenet-v2", "sentence-embedding"} <= logged_models(up.gateway))
    again = up.engine.start("archives")
    assert again.process.wait(120) == 0
    assert again.printed().count("up to date") == 2
    node = f"http://{up.nodes[0].address}:8085"
    assert [requests.get(f"{node}/{path}", timeout=10).status_code for path in ("ready", "live")] == [200, 200]
    assert requests.delete(f"{node}/models/mobilenet-v2", timeout=10).status_code in (404, 405)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{up.nodes[0].address}:8081/models", timeout=10)


def logged_models(gateway: Container) -> set[str | None]:
    return {json.loads(line)["model"] for line in gateway.printed().splitlines() if line.startswith("{")}


def test_node_runs_without_rights_on_a_root_that_cannot_be_written(up: Up) -> None:
    processes = [up.nodes[0].first(), *up.nodes[0].first().children(recursive=True)]
    assert {"java", "envoy", "tini"} <= {process.name() for process in processes}
    for process in processes:
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert re.search(r"^Uid:(\t1000){4}$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        assert "NoNewPrivs:\t1" in status
    with pytest.raises(OSError, match="Read-only"):
        Path(f"/proc/{processes[0].pid}/root/app/new").touch()


def test_sigterm_under_load_loses_no_answer(up: Up) -> None:
    """Neither through the gateway, which would ask the other node, nor of what the node has in hand itself."""
    node = up.nodes[0]
    statuses: list[int] = []

    def ask(_: int) -> int:
        url = f"http://{node.address}:8085/predictions/mobilenet-v2"
        return requests.put(url, data=photograph("chelsea"), timeout=60).status_code

    def stop() -> None:
        with ThreadPoolExecutor(IN_HAND) as pool:
            asked = [pool.submit(ask, number) for number in range(IN_HAND)]
            wait(asked, return_when=FIRST_COMPLETED)
            began_s = time.monotonic()
            assert node.stop() == 0, node.printed()
            print(f"SIGTERM to its end: {time.monotonic() - began_s:.1f} s")
            statuses.extend(each.result() for each in asked)

    summary = under_load(f"{up.url}/predictions/mobilenet-v2", INPUTS, RATE_PER_S, stop)
    assert all_answered(summary), (summary.statuses, summary.errors)
    assert sum(summary.statuses.values()) > 2 * RATE_PER_S
    assert statuses == [200] * IN_HAND
    assert "the last answer is out" in node.printed()


def test_dead_java_ends_the_container_and_an_edge_without_nodes_is_unhealthy_and_ends_when_told(up: Up) -> None:
    node = up.nodes[1]
    (java,) = (each for each in node.first().children(recursive=True) if each.name() == "java")
    java.kill()
    assert node.process.wait(60) != 0
    assert "has died" in node.printed()
    until(lambda: not up.gateway.is_healthy())
    assert up.gateway.stop() == 0, up.gateway.printed()
