"""A Ray cluster of this machine in .extras/ray: one raylet, with Serve, on free ports."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

from deploy.models import ROOT
from tests.waiting import until

BIN = ROOT / ".extras" / "ray" / "bin"
ENV = ROOT / "deploy" / "ray" / "ray.env"
# Seconds that a cluster or a deployment may take on a machine that is busy.
START_S = 400


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


class Cluster:
    def __init__(self, folder: Path, home: Path, cpus: int) -> None:
        """Prepare; `folder` has a short path, since sockets are in it."""
        self.folder, self._cpus = folder, cpus
        gcs, dashboard, client, self.metrics_port, http, rpc, *self._spare = free_ports(20)
        self.http, self.grpc = f"http://127.0.0.1:{http}", f"127.0.0.1:{rpc}"
        self._own_settings = {"host": "127.0.0.1", "port": http, "grpc_port": rpc}
        self._gcs, self._dashboard = gcs, f"http://127.0.0.1:{dashboard}"
        lines = [line.split("=", 1) for line in ENV.read_text().splitlines() if line and not line.startswith("#")]
        hap = folder / "hap"
        first = 31_000 + gcs % 5_000 * 4
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            **{name: value.strip('"') for name, value in lines},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "HOME": str(home),
            "TMPDIR": str(folder),
            "RAY_AUTH_TOKEN": secrets.token_urlsafe(24),
            "RAY_raylet_start_wait_time_s": "300",
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "deploy" / "ray" / "haproxy.sh"),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(hap / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(hap / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(hap),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(hap / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(hap / "metrics.sock"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(self._spare[0]),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(self._spare[1]),
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + 1_000),
            "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(first + 2_000),
            "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(first + 3_000),
        }
        self._log = (folder / "cluster.log").open("w")
        self._process: subprocess.Popen[bytes] | None = None
        self._client = client

    def start(self) -> None:
        dashboard = self._dashboard.rpartition(":")[2]
        words = [str(BIN / "ray"), "start", "--block", "--node-ip-address=127.0.0.1", f"--num-cpus={self._cpus}"]
        words += ["--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0"]
        words += ["--head", f"--port={self._gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
        words += [f"--metrics-export-port={self.metrics_port}", f"--ray-client-server-port={self._client}"]
        words += [f"--temp-dir={self.folder / 'r'}", "--include-dashboard=true"]
        output = self._log
        self._process = subprocess.Popen(
            words, env=self.env, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
        )
        until(self._is_up, timeout_s=START_S)

    def _is_up(self) -> bool:
        with suppress(requests.RequestException):
            return self._ask("GET", "/api/ray/version").ok
        return False

    def _ask(self, method: str, path: str, **named: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.env['RAY_AUTH_TOKEN']}"}
        return requests.request(method, self._dashboard + path, headers=headers, timeout=START_S, **named)

    def deploy(self, **settings: Any) -> None:
        """Serve what models.yaml would have, with the command's own configuration, and wait until it runs."""
        models = self.folder / "models.yaml"
        models.write_text(yaml.safe_dump({**self._own_settings, **settings}))
        words = [str(BIN / "python"), "-m", "deploy.ray", "config", str(models)]
        config = yaml.safe_load(subprocess.run(words, env=self.env, check=True, capture_output=True, cwd=ROOT).stdout)
        until(lambda: self._ask("PUT", "/api/serve/applications/", json=config).ok, timeout_s=START_S)
        until(
            lambda: self.statuses() == {each["name"]: "RUNNING" for each in config["applications"]}, timeout_s=START_S
        )
        names = [each["name"] for each in config["applications"][:-1]]
        until(lambda: all(self.is_routed(name) for name in names), timeout_s=START_S)

    def is_routed(self, name: str) -> bool:
        headers = {"X-Model-Metadata": "1"}
        answer = requests.get(f"{self.http}/predictions/{name}", headers=headers, timeout=60)
        return answer.status_code == 200

    def statuses(self) -> dict[str, str]:
        found = self._ask("GET", "/api/serve/applications/").json()["applications"]
        return {name: each["status"] for name, each in found.items()}

    def replicas(self, name: str, deployment: str = "archive") -> list[int]:
        """The processes of an application's replicas that run."""
        found = self._ask("GET", "/api/serve/applications/").json()["applications"][name]["deployments"][deployment]
        return [each["pid"] for each in found["replicas"] if each["state"] == "RUNNING"]

    def listening(self) -> set[tuple[str, str]]:
        found = set()
        for own in self._own():
            with suppress(psutil.NoSuchProcess):
                each = own.net_connections("tcp")
                found |= {(own.name(), it.laddr.ip) for it in each if it.status == psutil.CONN_LISTEN}
        return found

    def _own(self) -> list[psutil.Process]:
        found = []
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                own = psutil.Process(self._process.pid)
                found += [own, *own.children(recursive=True)]
        marked = [
            p for p in psutil.process_iter(["cmdline"]) if any(str(self.folder) in w for w in p.info["cmdline"] or ())
        ]
        return [*found, *marked]

    def stop(self) -> None:
        """End Serve, then every process of the cluster by its id."""
        with suppress(requests.RequestException):
            self._ask("DELETE", "/api/serve/applications/")
        own = self._own()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and any(each.is_running() for each in own):
            time.sleep(0.2)
        for process in {*own, *self._own()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait(30)
        self._log.close()


@contextmanager
def cluster(home: Path, cpus: int = 2) -> Iterator[Cluster]:
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "ray"], cwd=ROOT, check=True, timeout=600)
    folder = Path(f"/tmp/ray-{os.getpid()}-{secrets.token_hex(3)}")  # noqa: S108
    folder.mkdir()
    home.mkdir(exist_ok=True)
    running = Cluster(folder, home, cpus)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)
