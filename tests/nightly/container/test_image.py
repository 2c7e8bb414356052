"""The image, built for real: what is in it, and a node of compose.yaml that serves out of it and ends in order.

What a node's process does under load, drained and killed, is tests/nightly/test_container.py's, without an image.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.lock import blocks
from deploy.models import ROOT
from tests.nightly.container.engine import BUILD, MODELS, SERVICES, TAG, Image, built, network, run
from tests.waiting import until
from torchserve_client.version import VERSION

# The first test's has the build in it: three minutes of two cores, and ten where others work on them.
pytestmark = [pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with built() as made:
        yield made


def test_image_has_what_serves_in_the_versions_of_the_lock_and_nothing_else(image: Image) -> None:
    config = image.config
    assert (config["User"], config["WorkingDir"], config["Cmd"]) == ("1000:1000", "/app", ["node"])
    assert (config["StopSignal"], config["Entrypoint"][:2]) == ("SIGTERM", ["tini", "--"])
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert {"8085/tcp", "8000/tcp"} <= config["ExposedPorts"].keys()
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert (labels["version"], labels["revision"], labels["licenses"]) == (VERSION, "tested", "Apache-2.0")

    def lacking(*programs: str) -> list[str]:
        return [name for name in programs if image.within("sh", "-c", f"command -v {name}").returncode != 0]

    assert lacking("java", "envoy", "torchserve", "torchserve-client", "tini") == []
    others = ["gcc", "cc", "make", "pip", "pip3", "uv", "git"]
    assert lacking(*others) == others
    code = "import importlib.util as u; print([n for n in ('pip', 'ensurepip', 'pytest', 'mypy') if u.find_spec(n)])"
    assert image.within("python", "-c", code).stdout.strip() == "[]"

    def plain(pin: str) -> str:
        name, _, version = pin.partition("==")
        return f"{re.sub('[-_.]+', '-', name.lower())}=={version}"

    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = {plain(pin) for pin in image.within("python", "-c", code).stdout.split()}
    locked = {plain(pin) for pin in blocks((ROOT / "requirements-server.lock").read_text())}
    assert installed - locked == {f"torchserve-client=={VERSION}"}
    names = {path.name for path in (image.root / "app").iterdir()}
    assert names >= {"handlers", "deploy", "client", "examples"}
    assert names & {".git", ".venv", ".uv", "tests", "model_store", "build", "key_file.json", "logs"} == set()
    # docs/how-to/kubernetes.md has the figure: what grows by a tenth is noticed. MiB.
    assert int(run("du", "--summarize", "--block-size=1M", "--one-file-system", image.root).split()[0]) < 7000


def test_node_of_compose_predicts_without_rights_on_a_root_that_cannot_be_written_and_ends_in_order(
    image: Image, tmp_path: Path
) -> None:
    models, log = tmp_path / "models", tmp_path / "log"
    models.mkdir()
    with network() as space:
        for words in ("built", "up to date"):
            archives = image.start("archives", space, models, log)
            assert archives.wait(300) == 0, log.read_text()
            assert log.read_text().count(words) == 2
        process = image.start("torchserve-nodes", space, models, log)
        health = SERVICES["torchserve-nodes"]["healthcheck"]["test"][1:]
        try:

            def is_healthy() -> bool:
                assert process.poll() is None, log.read_text()
                return image.within(*health, space=space).returncode == 0

            until(is_healthy, 300)
            code = "from torchserve_client import Client; c = Client('http://127.0.0.1:8085'); "
            code += "print(c.predict('mobilenet-v2', open('examples/mobilenet-v2/espresso.jpg', 'rb').read(), top_k=1))"
            assert "espresso" in image.within("python", "-c", code, space=space).stdout
            (first,) = psutil.Process(process.pid).children()
            within = [first, *first.children(recursive=True)]
            assert {"java", "envoy", "tini"} <= {each.name() for each in within}
            for each in within:
                status = Path(f"/proc/{each.pid}/status").read_text()
                assert re.search(r"^Uid:(\t1000){4}$", status, re.MULTILINE)
                assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
                assert "NoNewPrivs:\t1" in status
            with pytest.raises(OSError, match="Read-only"):
                Path(f"/proc/{first.pid}/root/app/new").touch()
            first.send_signal(signal.Signals[image.config["StopSignal"]])
            grace_s = float(SERVICES["torchserve-nodes"]["stop_grace_period"].removesuffix("s"))
            assert process.wait(grace_s) == 0, log.read_text()
            assert "the last response is sent" in log.read_text()
        finally:
            if process.poll() is None:
                # The end of process 1 is that of all.
                for each in psutil.Process(process.pid).children():
                    each.kill()
                process.kill()
                process.wait()


def test_archives_are_baked_in_with_their_configuration(image: Image, tmp_path: Path) -> None:
    for name in ("shipped.mar", "left.txt", "config.properties"):
        (tmp_path / name).write_text(name)
    words = ("--build-arg", f"IMAGE={TAG}", "--file", MODELS, "--tag", f"{TAG}-models", tmp_path)
    image.store.buildah(*BUILD, *words)
    _, root = image.store.mounted(f"{TAG}-models")
    assert [path.name for path in (root / "models").iterdir()] == ["shipped.mar"]
    assert (root / "etc/torchserve/config.properties").read_text() == "config.properties"
