"""The image, built for real without a daemon: what is in it, and a node of compose.yaml that serves and ends in order.

    Debian's packages -> mmdebstrap -> base, by the name that FROM uses -> buildah build -> image -> its files
    a service: command, user, tmpfs, volumes -> Image.start: a separate network, unshare, chroot, setpriv

Needs root, 30 GB of disk for a moment, and PyPI. What a node's process does under load, drained and killed, is
tests/nightly/test_container.py's.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deploy.lock import blocks
from deploy.models import ROOT
from tests.e2e.conftest import printed
from tests.waiting import until
from torchserve_client.version import VERSION

# The first test's has the build in it: three minutes of two cores, and ten where others work on them.
pytestmark = [pytest.mark.timeout(3600)]
CONTAINERFILE = ROOT / "deploy" / "nodes" / "container" / "Containerfile"
MODELS = CONTAINERFILE.with_name("models.Containerfile")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
TAG = "torchserve-batching:test"
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Docker's own format, since OCI's has no HEALTHCHECK.
BUILD = ("build", "--isolation", "chroot", "--format", "docker", "--ulimit", "nofile=20000:20000", "--pull=false")

# $1 root, $2 paths of tmpfs, $3 of a volume: its folder here; the rest is run in there.
START = """
set -euo pipefail
root=$1 tmpfs=$2 models=$3; shift 3
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for path in $tmpfs; do mount -t tmpfs -o noexec,nosuid,nodev,mode=1777 tmpfs "$root$path"; done
mount --bind "$models" "$root/models"
mount -o remount,ro,bind "$root"
exec chroot "$root" "$@"
"""


run = partial(printed, cwd=ROOT)


@dataclass(frozen=True)
class Store:
    """Where buildah keeps images and containers: a folder of the repository that git ignores."""

    folder: Path
    driver: str = "overlay"

    def buildah(self, *words: str | Path) -> str:
        places = f"--root {self.folder}/storage --runroot {self.folder}/run --storage-driver {self.driver}".split()
        return run("nice", "buildah", *places, *words, env={**os.environ, "TMPDIR": str(self.folder)})

    def mounted(self, image: str) -> tuple[str, Path]:
        """Make a container of an image: its name, and the folder where its files lie."""
        name = self.buildah("from", "--pull=never", image).split()[-1]
        return name, Path(self.buildah("mount", name).strip())

    def make_base(self) -> None:
        """Commit Debian with Python, for the published base's own, under the name that FROM uses."""
        archive = self.folder / "base.tar"
        run("nice", "mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", archive)
        name, root = self.mounted("scratch")
        run("tar", "-C", root, "-xf", archive)
        archive.unlink()
        if CERTIFICATES.exists():
            # The machine's own, which it may need to reach PyPI.
            shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
            for variable in ("SSL_CERT_FILE", "PIP_CERT"):
                self.buildah("config", "--env", f"{variable}={CERTIFICATES}", name)
        (base,) = re.findall(r"^ARG BASE=(\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)
        self.buildah("commit", "--rm", name, base)

    def close(self) -> None:
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        # A mount is no folder to be emptied.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(self.folder)):
                run("umount", "--lazy", line.split()[1])
        shutil.rmtree(self.folder)


@dataclass(frozen=True)
class Image:
    """The image: its Env, Entrypoint, Cmd, User, Healthcheck, StopSignal, WorkingDir, ..., and its files."""

    store: Store
    config: dict[str, Any]
    root: Path

    def within(self, *words: str, space: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command in its files and with its environment, in a network namespace if one is named."""
        network = ["ip", "netns", "exec", space] if space else []
        command = [*network, "chroot", str(self.root), "env", "-i", "-C", "/app", *self.config["Env"], *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    def start(self, service: str, space: str, models: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a service; its process is the parent of the container's process 1."""
        its = SERVICES[service]
        user, _, group = its["user"].partition(":")
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        command = [
            *f"ip netns exec {space} nice unshare --mount --pid --fork --propagation private".split(),
            *("bash", "-c", START, "bash", str(self.root), " ".join(its["tmpfs"]), str(models)),
            *("setpriv", "--reuid", user, "--regid", group, *drop),
            *("env", "-i", "-C", self.config["WorkingDir"], *self.config["Env"]),
            *(*self.config["Entrypoint"], *its["command"]),
        ]
        os.chown(models, int(user), int(group))
        with log.open("wb") as output:
            # As engines have it: what runs in there may open its own output.
            os.fchown(output.fileno(), int(user), int(group))
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Build the image as the Containerfile says, from the repository as it is; remove it afterwards."""
    (ROOT / "build").mkdir(exist_ok=True)
    store = Store(Path(tempfile.mkdtemp(prefix="container-", dir=ROOT / "build")))
    try:
        store.mounted("scratch")
    except AssertionError:
        store = Store(store.folder, "vfs")
    try:
        store.make_base()
        # This machine's cache, with what `make serve` has fetched.
        cache = run(ROOT / ".uv" / "bin" / "uv", "cache", "dir").strip()
        cached = ("--volume", f"{cache}:/uv-cache", "--build-arg", "UV_CACHE_DIR=/uv-cache")
        store.buildah(*BUILD, *cached, "--build-arg", "REVISION=tested", "--file", CONTAINERFILE, "--tag", TAG, ROOT)
        config = json.loads(store.buildah("inspect", "--type", "image", TAG))["Docker"]["config"]
        yield Image(store, config, store.mounted(TAG)[1])
    finally:
        store.close()


@contextmanager
def network() -> Iterator[str]:
    space = f"tc-{os.getpid() % 100000}"
    run("ip", "netns", "add", space)
    run("ip", "-n", space, "link", "set", "lo", "up")
    try:
        yield space
    finally:
        run("ip", "netns", "del", space)


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
    assert installed - locked == {f"torchserve-batching-client=={VERSION}"}
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
                for line in (r"Uid:(\t1000){4}", r"CapEff:\t0+", r"NoNewPrivs:\t1"):
                    assert re.search(f"^{line}$", status, re.MULTILINE), line
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
