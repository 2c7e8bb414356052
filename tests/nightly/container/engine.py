"""The image built, and services of compose.yaml run out of its files, without a daemon: none can be had in a test.

    Debian's packages -> mmdebstrap -> base, by the name that FROM uses -> buildah build -> image -> its files
    compose.yaml: command, user, tmpfs, volumes, healthcheck, stop -> Container: unshare, chroot, setpriv

The base has Debian's Python where the published one has its own. Each container has its own processes, mounts and
network card, a root that cannot be written to, no capability and no new privileges; unlike an engine's it has no limit
of memory, and names of services stand in /etc/hosts. Needs root, some 30 GB of disk for a moment, and the network.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.models import ROOT
from tests.nightly.namespaces import ip
from tests.waiting import until

CONTAINERFILE = ROOT / "deploy" / "container" / "Containerfile"
MODELS = CONTAINERFILE.with_name("models.Containerfile")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
TAG = "torchserve-batching:test"
# What the published base has and these tests need of it.
PACKAGES = "python3,python3-pip,python3-venv,ca-certificates"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Docker's own format, since OCI's has no HEALTHCHECK.
BUILD = ("build", "--isolation", "chroot", "--format", "docker", "--ulimit", "nofile=20000:20000", "--pull=false")

# $1 root, $2 mounts as lines of `tmpfs - PATH MODE` or `bind FROM PATH MODE`; the rest is run in there.
START = """
set -euo pipefail
root=$1 mounts=$2; shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while read -r kind from path mode; do
    if [ "$kind" = tmpfs ]; then
        mount -t tmpfs -o "$mode" tmpfs "$root$path"
    else
        mount --bind "$from" "$root$path"
        mount -o "remount,bind,$mode" "$root$path"
    fi
done <<<"$mounts"
mount -o remount,ro,bind "$root"
exec chroot "$root" "$@"
"""


def run(*words: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; its errors are the assertion's."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


class Store:
    """Where buildah keeps images and containers, in a folder of the repository that git ignores."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._driver = folder, "overlay"
        try:
            self.mounted("scratch")
        except AssertionError:
            # Neither the kernel nor the file system has to have overlays: this copies each layer whole.
            self._driver = "vfs"
        self.buildah("rm", "--all")

    def buildah(self, *words: str | Path) -> str:
        places = ["--root", self.folder / "storage", "--runroot", self.folder / "run", "--storage-driver", self._driver]
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
        # Whatever of it is a mount is no folder to be emptied.
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

    def has(self, program: str) -> bool:
        words = ["chroot", str(self.root), "env", "-i", *self.config["Env"], "sh", "-c", f"command -v {program}"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def python(self, code: str) -> str:
        return run("chroot", self.root, "/opt/venv/bin/python", "-c", code).strip()


@contextmanager
def built() -> Iterator[Image]:
    """Build the image as the Containerfile says, from the repository as it stands; nothing is left of it."""
    place = ROOT / "build"
    place.mkdir(exist_ok=True)
    store = Store(Path(tempfile.mkdtemp(prefix="container-", dir=place)))
    try:
        store.make_base()
        # This machine's cache: what `make serve` has fetched is not fetched again.
        cache = run(ROOT / ".uv" / "bin" / "uv", "cache", "dir").strip()
        cached = ("--volume", f"{cache}:/uv-cache", "--build-arg", "UV_CACHE_DIR=/uv-cache")
        store.buildah(*BUILD, *cached, "--build-arg", "REVISION=tested", "--file", CONTAINERFILE, "--tag", TAG, ROOT)
        config = json.loads(store.buildah("inspect", "--type", "image", TAG))["Docker"]["config"]
        yield Image(store, config, store.mounted(TAG)[1])
    finally:
        store.close()


def seconds(text: str) -> float:
    """A duration of compose.yaml."""
    assert text.endswith("s")
    return float(text.removesuffix("s"))


@dataclass
class Container:
    """One running service; `process` is outside, the parent of its process 1."""

    service: dict[str, Any]
    image: Image
    address: str
    log: Path
    process: subprocess.Popen[bytes]

    def first(self) -> psutil.Process:
        """Its process 1, which is tini."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = [each for each in psutil.Process(self.process.pid).children() if each.name() == "tini"]
            return bool(found)

        until(look)
        return found[0]

    def printed(self) -> str:
        return self.log.read_text(errors="replace")

    def is_healthy(self) -> bool:
        """Run its healthcheck in it."""
        assert self.process.poll() is None, self.printed()
        words = ["nsenter", "--target", str(self.first().pid), "--mount", "--net", "--pid", "--root"]
        words += ["env", "-i", *self.image.config["Env"], *self.service["healthcheck"]["test"][1:]]
        return subprocess.run(words, capture_output=True, check=False, timeout=60).returncode == 0

    def stop(self) -> int:
        """Send the image's stop signal; the exit status, within the service's grace."""
        self.first().send_signal(signal.Signals[self.image.config["StopSignal"]])
        return self.process.wait(seconds(self.service.get("stop_grace_period", "10s")))

    def kill(self) -> None:
        if self.process.poll() is None:
            # unshare --kill-child is forgotten where the child changes its user. The end of process 1 is that of all.
            for first in psutil.Process(self.process.pid).children():
                first.kill()
            self.process.kill()
            self.process.wait()


@dataclass
class Engine:
    """A network that this machine is part of, volumes below `folder`, and containers.

    Attributes:
        tag: in the names of network cards, of at most 15 characters; another run may be under way.
        network: the first three numbers of its addresses.
    """

    image: Image
    folder: Path
    tag: str = field(default_factory=lambda: f"tc{os.getpid() % 100000}")
    network: str = field(default_factory=lambda: f"10.232.{os.getpid() % 256}")
    containers: list[Container] = field(default_factory=list)

    def __enter__(self) -> "Engine":
        ip("link", "add", self.tag, "type", "bridge")
        ip("addr", "add", f"{self.network}.1/24", "dev", self.tag)
        ip("link", "set", self.tag, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for number, container in enumerate(self.containers):
            container.kill()
            ip("netns", "del", f"{self.tag}-{number}")
        ip("link", "del", self.tag)

    def start(self, name: str, hosts: Mapping[str, Sequence[str]] | None = None) -> Container:
        """Start a service; hosts are names of services and their addresses."""
        service, config, number = SERVICES[name], self.image.config, len(self.containers)
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "no-new-privileges:true" in service["security_opt"]
        space, address = f"{self.tag}-{number}", f"{self.network}.{10 + number}"
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        if service.get("network_mode") != "none":
            near, far = f"{self.tag}a{number}", f"{self.tag}b{number}"
            ip("link", "add", near, "type", "veth", "peer", "name", far)
            ip("link", "set", far, "netns", space)
            ip("link", "set", near, "master", self.tag, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", far)
            ip("-n", space, "link", "set", far, "up")
        user, _, group = service["user"].partition(":")
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
            *("bash", "-c", START, "bash", str(self.image.root), self._mounts(service, number, hosts or {})),
            *("setpriv", "--reuid", user, "--regid", group, *drop),
            *("env", "-i", "-C", config["WorkingDir"], *config["Env"]),
            *(*config["Entrypoint"], *service.get("command", config["Cmd"])),
        ]
        log = self.folder / f"{number}-{name}.log"
        with log.open("ab") as output:
            # As engines have it: what runs in there may open its own output.
            os.fchown(output.fileno(), int(user), int(group))
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.containers.append(Container(service, self.image, address, log, process))
        return self.containers[-1]

    def _mounts(self, service: Mapping[str, Any], number: int, hosts: Mapping[str, Sequence[str]]) -> str:
        names = self.folder / f"hosts-{number}"
        found = [f"{each} {host}" for host, addresses in hosts.items() for each in addresses]
        names.write_text("\n".join(["127.0.0.1 localhost", *found, ""]))
        # As Docker mounts a tmpfs where nothing else is said.
        lines = [f"tmpfs - {path} noexec,nosuid,nodev,mode=1777" for path in service["tmpfs"]]
        lines.append(f"bind {names} /etc/hosts ro")
        for volume in service.get("volumes", ()):
            source, path, *mode = volume.split(":")
            place = (ROOT / source).resolve() if source.startswith(".") else self.folder / "volumes" / source
            if not place.exists():
                place.mkdir(parents=True)
                # An empty volume takes over whose the image's folder is.
                owner = (self.image.root / path.lstrip("/")).stat()
                os.chown(place, owner.st_uid, owner.st_gid)
            lines.append(f"bind {place} {path} {mode[0] if mode else 'rw'}")
        return "\n".join(lines)
