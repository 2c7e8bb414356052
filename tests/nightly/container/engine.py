"""Builds the image, and runs commands out of its files as compose.yaml has them, without a daemon.

    Debian's packages -> mmdebstrap -> base, by the name that FROM uses -> buildah build -> image -> its files
    a service: command, user, tmpfs, volumes -> Image.start: a separate network, unshare, chroot, setpriv

The base has Debian's Python where the published one has its own. Needs root, 30 GB of disk for a moment, and PyPI.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.models import ROOT

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
MODELS = CONTAINERFILE.with_name("models.Containerfile")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
TAG = "torchserve-batching:test"
# Debian packages for what the published base has.
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


def run(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; its errors are the assertion's."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Store:
    """Where buildah keeps images and containers: a folder of the repository that git ignores."""

    folder: Path
    driver: str = "overlay"

    def buildah(self, *words: str | Path) -> str:
        places = ["--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run"]
        places += ["--storage-driver", self.driver]
        return run("nice", "buildah", *places, *words, environment={**os.environ, "TMPDIR": str(self.folder)})

    def mounted(self, image: str) -> tuple[str, Path]:
        """Make a container of an image: its name, and the folder where its files lie."""
        name = self.buildah("from", "--pull=never", image).split()[-1]
        return name, Path(self.buildah("mount", name).strip())

    def make_base(self) -> None:
        """Commit Debian with Python under the name that FROM uses."""
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
        assert (its["read_only"], its["cap_drop"], its["security_opt"]) == (True, ["ALL"], ["no-new-privileges:true"])
        user, _, group = its["user"].partition(":")
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        command = [
            *(
                "ip",
                "netns",
                "exec",
                space,
                "nice",
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--propagation",
                "private",
            ),
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


@contextmanager
def built() -> Iterator[Image]:
    """Build the image as the Containerfile says, from the repository as it is; remove it afterwards."""
    place = ROOT / "build"
    place.mkdir(exist_ok=True)
    store = Store(Path(tempfile.mkdtemp(prefix="container-", dir=place)))
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
