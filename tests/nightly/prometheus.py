"""Debian's Prometheus, unpacked by tests/nightly/packages/prometheus.sh, on a free port with our rules."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

from deploy.models import ROOT
from deploy.sandbox import free_ports

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "torchserve.json"
BIN = ROOT / ".tools" / "prometheus" / "usr" / "bin"
SHIPPED = ROOT / "deploy" / "prometheus"
# Seconds; a machine that stalls must not fail a test.
PATIENCE_S = 60.0


def panels() -> dict[str, list[str]]:
    found = json.loads(DASHBOARD.read_text())["panels"]
    return {each["title"]: [target["expr"] for target in each["targets"]] for each in found if each["type"] != "row"}


class Prometheus:
    def __init__(self, url: str) -> None:
        self.url = url
        self._session = requests.Session()
        self._session.trust_env = False

    def ask(self, path: str, **parameters: Any) -> Any:
        answer = self._session.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30)
        document = answer.json()
        assert document["status"] == "success", (parameters, document)
        return document["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Ask for now: each series' labels, and its value."""
        result = self.ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def value(self, expression: str) -> float:
        ((_, value),) = self.query(expression)
        return value

    def alerts(self) -> dict[str, str]:
        """Those that are pending or firing, each with its state; firing where it is both."""
        found: dict[str, str] = {}
        for alert in self.ask("alerts")["alerts"]:
            name = alert["labels"]["alertname"]
            found[name] = alert["state"] if found.get(name) != "firing" else "firing"
        return found

    def until(self, holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.ask("targets")["activeTargets"]
            time.sleep(0.2)


def configuration(folder: Path, gateway: str, interval_s: int = 1) -> Path:
    """The shipped files, with another target and shorter intervals, also of alerts."""
    document = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    every = f"{interval_s}s"
    document["global"].update(scrape_interval=every, scrape_timeout=every, evaluation_interval=every)
    document["scrape_configs"][0]["static_configs"][0]["targets"] = [gateway]
    (folder / "rules").mkdir()
    for path in (SHIPPED / "rules").glob("*.yml"):
        text = re.sub(r"^( +interval:) 15s$", rf"\1 {every}", path.read_text(), flags=re.MULTILINE)
        (folder / "rules" / path.name).write_text(re.sub(r"^( +for:) 1m$", rf"\1 {every}", text, flags=re.MULTILINE))
    written = folder / "prometheus.yml"
    written.write_text(yaml.safe_dump(document))
    return written


@contextmanager
def started(folder: Path, gateway: str) -> Iterator[Prometheus]:
    config = configuration(folder, gateway)
    (port,) = free_ports(1)
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                str(BIN / "prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        subject = Prometheus(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            try:
                if requests.get(f"{subject.url}/-/ready", timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                pass
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield subject
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
