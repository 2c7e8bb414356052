"""Runs services of compose.yaml out of an image's files, as a container engine would: no daemon can be had in a test.

    compose.yaml ── command, user, tmpfs, volumes, healthcheck, stop ──> Container: unshare, chroot, setpriv

Each container has its own processes, mounts and network card, a root that cannot be written to, no capability and no
new privileges. What is not as an engine has it: no limit of memory, and names of services stand in /etc/hosts.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.models import ROOT
from tests.nightly.container.built import Image
from tests.nightly.namespaces import ip

COMPOSE = ROOT / "compose.yaml"
# As Docker mounts a tmpfs where nothing else is said.
TMPFS = "noexec,nosuid,nodev,mode=1777"
SIGNALS = {"SIGTERM": signal.SIGTERM}

# $1 root, $2 mounts as lines of `tmpfs PATH` or `bind FROM PATH MODE`; the rest is run in there.
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


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return loaded


def seconds(text: str) -> float:
    """A duration of compose.yaml."""
    assert text.endswith("s")
    return float(text.removesuffix("s"))


@dataclass
class Container:
    """One running service.

    Attributes:
        service: as compose.yaml has it.
        image: whose files it sees.
        address: its own.
        log: what it prints.
        process: outside, the parent of its process 1.
    """

    service: dict[str, Any]
    image: Image
    address: str
    log: Path
    process: subprocess.Popen[bytes]

    def first(self) -> psutil.Process:
        """Its process 1, which is tini."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                if child.name() == "tini":
                    return child
            time.sleep(0.05)
        raise AssertionError(f"no tini: {self.said()}")

    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def health(self) -> subprocess.CompletedProcess[str]:
        """Run its healthcheck in it."""
        kind, *test = self.service["healthcheck"]["test"]
        assert kind == "CMD"
        words = ["nsenter", "--target", str(self.first().pid), "--mount", "--net", "--pid", "--root"]
        words += ["env", "-i", *(f"{name}={value}" for name, value in self.image.environment.items())]
        timeout_s = seconds(self.service["healthcheck"]["timeout"])
        return subprocess.run([*words, *test], capture_output=True, text=True, check=False, timeout=4 * timeout_s)

    def wait_healthy(self, limit_s: float) -> float:
        """Wait for it; seconds that it took."""
        began_s = time.monotonic()
        while (checked := self.health()).returncode != 0:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < began_s + limit_s, checked.stdout + self.said()
            time.sleep(0.25)
        return time.monotonic() - began_s

    def stop(self) -> int:
        """Send the image's stop signal; the exit status, within the service's grace."""
        self.first().send_signal(SIGNALS[self.image.config["StopSignal"]])
        return self.process.wait(seconds(self.service.get("stop_grace_period", "10s")))

    def kill(self) -> None:
        """End whatever is left of it."""
        if self.process.poll() is None:
            # unshare --kill-child is forgotten where the child changes its user. The end of process 1 is that of all.
            for first in psutil.Process(self.process.pid).children():
                first.kill()
            self.process.kill()
            self.process.wait()


@dataclass
class Engine:
    """What a container engine is to compose.yaml: a network, volumes, containers.

    Attributes:
        image: of every service that is ours.
        folder: of volumes and logs.
        tag: in the names of network cards.
        network: the first three numbers of its addresses.
    """

    image: Image
    folder: Path
    tag: str
    network: str
    containers: list[Container] = field(default_factory=list)
    _spaces: list[str] = field(default_factory=list)

    @property
    def volumes(self) -> Path:
        """The folder of the named volumes."""
        return self.folder / "volumes"

    def address(self, number: int) -> str:
        """The address of the container that is started as that, from 0."""
        return f"{self.network}.{10 + number}"

    def start(self, name: str, hosts: Mapping[str, Sequence[str]] | None = None) -> Container:
        """Start a service.

        Args:
            name: of the service.
            hosts: name of a service -> its addresses.
        """
        service = services()[name]
        number = len(self._spaces)
        space, address = f"{self.tag}-{number}", self.address(number)
        ip("netns", "add", space)
        self._spaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        if service.get("network_mode") != "none":
            near, far = f"{self.tag}a{number}", f"{self.tag}b{number}"
            ip("link", "add", near, "type", "veth", "peer", "name", far)
            ip("link", "set", far, "netns", space)
            ip("link", "set", near, "master", self.tag, "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", far)
            ip("-n", space, "link", "set", far, "up")
        lines = ["127.0.0.1 localhost", *(f"{each} {host}" for host, all_ in (hosts or {}).items() for each in all_)]
        hosts_file = self.folder / f"hosts-{number}"
        hosts_file.write_text("\n".join(lines) + "\n")
        config = self.image.config
        words = [*config["Entrypoint"], *service.get("command", config["Cmd"])]
        user, _, group = service["user"].partition(":")
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        drop = ["--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        environment = [f"{key}={value}" for key, value in self.image.environment.items()]
        alone = ["--mount", "--pid", "--fork", "--propagation", "private"]
        command = [
            *("ip", "netns", "exec", space, "nice", "unshare", *alone),
            *("bash", "-c", START, "bash", str(self.image.root), self._mounts(service, hosts_file)),
            *("setpriv", "--reuid", user, "--regid", group, *drop),
            *("env", "-i", "-C", config["WorkingDir"], *environment, *words),
        ]
        log = self.folder / f"{number}-{name}.log"
        with log.open("ab") as output:
            # As engines have it: what runs in there may open its own output.
            os.fchown(output.fileno(), int(user), int(group))
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        container = Container(service, self.image, address, log, process)
        self.containers.append(container)
        return container

    def _mounts(self, service: Mapping[str, Any], hosts: Path) -> str:
        lines = [f"tmpfs - {path} {TMPFS}" for path in service["tmpfs"]]
        lines.append(f"bind {hosts} /etc/hosts ro")
        for volume in service.get("volumes", ()):
            source, path, *mode = volume.split(":")
            place = (ROOT / source).resolve() if source.startswith(".") else self._volume(source, path)
            lines.append(f"bind {place} {path} {mode[0] if mode else 'rw'}")
        return "\n".join(lines)

    def _volume(self, name: str, path: str) -> Path:
        """A named volume; an empty one takes over whose the image's folder is, as Docker has it."""
        place = self.volumes / name
        if not place.exists():
            place.mkdir(parents=True)
            owner = (self.image.root / path.lstrip("/")).stat()
            os.chown(place, owner.st_uid, owner.st_gid)
        return place

    def close(self) -> None:
        """End all containers, and take away the network."""
        for container in self.containers:
            container.kill()
        for space in self._spaces:
            ip("netns", "del", space)


@contextmanager
def engine(image: Image, folder: Path) -> Iterator[Engine]:
    """An engine with a network that this machine is part of; nothing is left of it but the folder."""
    # Names of network cards have at most 15 characters, and another run may be under way.
    tag, network = f"tc{os.getpid() % 100000}", f"10.232.{os.getpid() % 256}"
    made = Engine(image, folder, tag, network)
    ip("link", "add", tag, "type", "bridge")
    try:
        ip("addr", "add", f"{network}.1/24", "dev", tag)
        ip("link", "set", tag, "up")
        yield made
    finally:
        made.close()
        ip("link", "del", tag)
