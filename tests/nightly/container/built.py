"""The image, built for real without a daemon: buildah runs the Containerfile's commands in a chroot.

    Debian's packages ── mmdebstrap ──> base, by the name that FROM uses ── buildah build ──> image ──> its files

The base has Debian's Python and its pip where the published one has its own; nothing else of the Containerfile is
different. Needs root, some 30 GB of disk for a moment, and the network. uv's cache of this machine is used, so that
what `make serve` has fetched is not fetched again.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.models import ROOT

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
MODELS = CONTAINERFILE.with_name("models.Containerfile")
TAG = "torchserve-batching:test"
# What the published base has and these tests need of it.
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# At most, in bytes, all at once: two copies of the environment in containers, one on its way, one as a layer.
NEEDED_BYTES = 30 << 30


def run(*words: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command and give what it prints; its errors are the assertion's."""
    finished = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
    assert finished.returncode == 0, f"{' '.join(map(str, words))}: {finished.stdout[-2000:]}{finished.stderr[-4000:]}"
    return finished.stdout


@dataclass(frozen=True)
class Store:
    """Where buildah keeps images and containers.

    Attributes:
        folder: of all of it.
        driver: overlay, or vfs where the kernel or the folder's file system cannot: it copies each layer whole.
    """

    folder: Path
    driver: str

    def buildah(self, *words: str | Path) -> str:
        """Run a command of buildah."""
        places = ["--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run"]
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        return run(
            "nice", "buildah", *places, "--storage-driver", self.driver, *words, cwd=ROOT, environment=environment
        )

    def mounted(self, image: str) -> tuple[str, Path]:
        """Make a container of an image: its name, and the folder where its files lie."""
        name = self.buildah("from", "--pull=never", image).split()[-1]
        return name, Path(self.buildah("mount", name).strip())


@dataclass(frozen=True)
class Image:
    """An image that was built.

    Attributes:
        config: what it says of itself: Env, Entrypoint, Cmd, User, Healthcheck, Labels, StopSignal, WorkingDir.
        root: its files.
    """

    config: dict[str, Any]
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """Its variables."""
        return dict(each.split("=", 1) for each in self.config["Env"])


@contextmanager
def store() -> Iterator[Store]:
    """A store in a folder of the repository that git ignores; nothing is left of it."""
    place = ROOT / "build"
    place.mkdir(exist_ok=True)
    free = shutil.disk_usage(place).free
    assert free > NEEDED_BYTES, f"{place}: {free >> 30} GiB are free, and an image takes {NEEDED_BYTES >> 30}"
    folder = Path(tempfile.mkdtemp(prefix="container-", dir=place))
    made = Store(folder, "overlay")
    try:
        try:
            made.buildah("mount", made.buildah("from", "scratch").strip())
        except AssertionError:
            made = Store(folder, "vfs")
        made.buildah("rm", "--all")
        yield made
    finally:
        made.buildah("rm", "--all")
        made.buildah("rmi", "--all", "--force")
        # Whatever of it is a mount is no folder to be emptied.
        for line in Path("/proc/self/mounts").read_text().splitlines():
            if line.split()[1].startswith(str(folder)):
                run("umount", "--lazy", line.split()[1])
        shutil.rmtree(folder)


def base_name() -> str:
    """What FROM names."""
    found = re.search(r"^ARG BASE=(\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    assert found
    return found[1]


def make_base(made: Store) -> None:
    """Commit Debian with Python under the name of the published base."""
    archive = made.folder / "base.tar"
    run("nice", "mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", archive)
    name = made.buildah("from", "scratch").strip()
    root = Path(made.buildah("mount", name).strip())
    run("tar", "-C", root, "-xf", archive)
    archive.unlink()
    if CERTIFICATES.exists():
        # The machine's own, which it may need to reach PyPI.
        shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        for variable in ("SSL_CERT_FILE", "PIP_CERT"):
            made.buildah("config", "--env", f"{variable}={CERTIFICATES}", name)
    made.buildah("commit", "--rm", name, base_name())


# Without a daemon; Docker's own format, since OCI's has no HEALTHCHECK.
BUILD = ("build", "--isolation", "chroot", "--format", "docker", "--ulimit", "nofile=20000:20000", "--pull=false")


def build_models(made: Store, image: str, context: Path) -> Path:
    """Build models.Containerfile on an image, with the archives of a folder; the files of what comes out."""
    made.buildah(*BUILD, "--build-arg", f"IMAGE={image}", "--file", MODELS, "--tag", f"{image}-models", context)
    return made.mounted(f"{image}-models")[1]


def build(made: Store) -> Image:
    """Build the image as the Containerfile says, from the repository as it stands."""
    cache = run(ROOT / ".uv" / "bin" / "uv", "cache", "dir").strip()
    Path(cache).mkdir(parents=True, exist_ok=True)
    made.buildah(
        *BUILD,
        *("--volume", f"{cache}:/uv-cache", "--build-arg", "UV_CACHE_DIR=/uv-cache", "--build-arg", "REVISION=tested"),
        *("--file", CONTAINERFILE, "--tag", TAG, ROOT),
    )
    config = json.loads(made.buildah("inspect", "--type", "image", TAG))["Docker"]["config"]
    _, root = made.mounted(TAG)
    return Image(config, root)
