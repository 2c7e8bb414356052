"""A Ray cluster of this machine in .extras/ray: one raylet, with Serve, on free ports."""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

from deploy.models import ROOT
from load.bench.peer_process import build_environment
from load.sandbox import free_ports
from tests.e2e.conftest import printed
from tests.waiting import until

BIN = ROOT / ".extras" / "ray" / "bin"
ENV = ROOT / "deploy" / "hosts" / "ray" / "ray.env"
# Seconds that a cluster or a deployment may take on a machine that is busy.
START_S = 400


class Cluster:
    def __init__(self, folder: Path, home: Path, cpus: int) -> None:
        """Start; `folder` has a short path, since sockets are in it."""
        self.folder = folder
        gcs, dashboard, client, metrics, http, rpc, haproxy_metrics, stats = free_ports(8)
        self.http, self.grpc = f"http://127.0.0.1:{http}", f"127.0.0.1:{rpc}"
        self._own_settings = {"host": "127.0.0.1", "port": http, "grpc_port": rpc}
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        lines = [line.split("=", 1) for line in ENV.read_text().splitlines() if line and not line.startswith("#")]
        hap, first = folder / "hap", 31_000 + gcs % 5_000 * 4
        ray = {
            "AUTH_TOKEN": secrets.token_urlsafe(24),
            "raylet_start_wait_time_s": 300,
            "SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": 2,
            "SERVE_HAPROXY_BINARY_PATH": ROOT / "deploy" / "hosts" / "ray" / "haproxy.sh",
            "SERVE_HAPROXY_CONFIG_FILE_LOC": hap / "haproxy.cfg",
            "SERVE_HAPROXY_SOCKET_PATH": hap / "admin.sock",
            "SERVE_HAPROXY_SERVER_STATE_BASE": hap,
            "SERVE_HAPROXY_SERVER_STATE_FILE": hap / "server-state",
            "SERVE_HAPROXY_METRICS_SOCKET_PATH": hap / "metrics.sock",
            "SERVE_HAPROXY_METRICS_PORT": haproxy_metrics,
            "SERVE_HAPROXY_STATS_PORT": stats,
        }
        for number, bound in enumerate(("MIN_HTTP", "MAX_HTTP", "MIN_GRPC", "MAX_GRPC")):
            ray[f"SERVE_DIRECT_INGRESS_{bound}_PORT"] = first + 1_000 * number
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            **{name: value.strip('"') for name, value in lines},
            **{f"RAY_{name}": str(value) for name, value in ray.items()},
            **{"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
            **{"HOME": str(home), "TMPDIR": str(folder)},
        }
        words = [str(BIN / "ray"), "start", "--block", "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}"]
        words += ["--object-store-memory=80000000", "--min-worker-port=0", "--max-worker-port=0"]
        words += ["--head", f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
        words += [f"--metrics-export-port={metrics}", f"--ray-client-server-port={client}"]
        words += [f"--temp-dir={folder / 'r'}", "--include-dashboard=true"]
        self._log = (folder / "cluster.log").open("w")
        self._process = subprocess.Popen(
            words, env=self.env, cwd=folder, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def wait(self) -> None:
        until(self._is_up, timeout_s=START_S)

    def _is_up(self) -> bool:
        # Ray itself gives a raylet 30 s, and ends.
        assert self._process.poll() is None, (self.folder / "cluster.log").read_text()[-2000:]
        with suppress(requests.RequestException):
            return self._ask("GET", "/api/ray/version", timeout=30).ok
        return False

    def _accepts(self, config: Any) -> bool:
        # A dashboard that starts on a busy machine may end a request.
        with suppress(requests.ConnectionError):
            return self._ask("PUT", "/api/serve/applications/", json=config).ok
        return False

    def _ask(self, method: str, path: str, timeout: float = START_S, **named: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.env['RAY_AUTH_TOKEN']}"}
        return requests.request(method, self.dashboard + path, headers=headers, timeout=timeout, **named)

    def deploy(self, **settings: Any) -> None:
        """Serve what models.yaml would have, with the command's own configuration, and wait until it runs."""
        models = self.folder / "models.yaml"
        models.write_text(yaml.safe_dump({**self._own_settings, **settings}))
        words = (BIN / "python", "-m", "deploy.hosts.ray", "config", models)
        config = yaml.safe_load(printed(*words, env=self.env, cwd=ROOT))
        self._config = config
        until(lambda: self._accepts(config), timeout_s=START_S)
        names = [each["name"] for each in config["applications"]]
        until(lambda: self.statuses() == dict.fromkeys(names, "RUNNING"), timeout_s=START_S)
        until(lambda: all(self.is_routed(name) for name in names[:-1]), timeout_s=START_S)

    def withdraw(self, name: str) -> None:
        """Serve all applications of the last configuration but one."""
        kept = [each for each in self._config["applications"] if each["name"] != name]
        until(lambda: self._accepts({**self._config, "applications": kept}), timeout_s=START_S)

    def is_routed(self, name: str) -> bool:
        return requests.get(f"{self.http}/predictions/{name}", headers={"X-Model-Metadata": "1"}, timeout=60).ok

    def _applications(self) -> Any:
        return self._ask("GET", "/api/serve/applications/").json()["applications"]

    def statuses(self) -> dict[str, str]:
        return {name: each["status"] for name, each in self._applications().items()}

    def replicas(self, name: str, deployment: str = "archive") -> list[int]:
        """The processes of an application's replicas that run."""
        found = self._applications()[name]["deployments"][deployment]
        return [each["pid"] for each in found["replicas"] if each["state"] == "RUNNING"]

    def listening(self) -> set[tuple[str, str]]:
        found = set()
        for own in self._own():
            with suppress(psutil.NoSuchProcess):
                each = own.net_connections("tcp")
                found |= {(own.name(), it.laddr.ip) for it in each if it.status == psutil.CONN_LISTEN}
        return found

    def _own(self) -> list[psutil.Process]:
        found = [
            p for p in psutil.process_iter(["cmdline"]) if any(str(self.folder) in w for w in p.info["cmdline"] or ())
        ]
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            found += [own, *own.children(recursive=True)]
        return found

    def stop(self) -> None:
        """End Serve, then every process of the cluster by its id."""
        with suppress(requests.RequestException):
            self._ask("DELETE", "/api/serve/applications/")
        own = self._own()
        self._process.send_signal(signal.SIGTERM)
        psutil.wait_procs(own, timeout=20)
        for process in {*own, *self._own()}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(30)
        self._log.close()


@contextmanager
def cluster(home: Path, cpus: int = 2) -> Iterator[Cluster]:
    build_environment("ray")
    folder = Path(f"/tmp/ray-{os.getpid()}-{secrets.token_hex(3)}")  # noqa: S108
    folder.mkdir()
    home.mkdir(exist_ok=True)
    running = Cluster(folder, home, cpus)
    try:
        running.wait()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)
