"""A real Prometheus with the shipped rules on a live gateway and TorchServe: every query has an answer, and it is so.

One scene for the module, in this order: a healthy load that is counted, refusals and errors, the node killed at last.
Debian's Prometheus is unpacked by tests/nightly/packages/prometheus.sh.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ROOT, model
from deploy.nodes.run.server import Server
from load import sandbox
from load.sandbox import free_ports, run_server
from tests.e2e.conftest import vary
from tests.waiting import until

DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "torchserve.json"
BIN = ROOT / ".tools" / "prometheus" / "usr" / "bin"
SHIPPED = ROOT / "deploy" / "prometheus"
CLASSIC, ADAPTIVE = "language-id-classic", "language-id-adaptive"
MODELS = (CLASSIC, ADAPTIVE)
# The values of the dashboard's variables, with everything selected.
VARIABLES = {"${model:pipe}": ".*", "$model": ".*", "$version": ".*", "$node": ".*", "$__rate_interval": "20s"}
# A machine that stalls raises these by itself.
OF_TIME = {"SlowerThanPredicted", "DeadlineMisses", "QueueAge"}
SCALED = ROOT / "deploy" / "kubernetes" / "overlays" / "keda" / "scaledobject.yaml"
CLIENTS, ROUNDS, PAUSE_S = 4, 60, 0.05


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

    def alerts(self, state: str = "pending|firing") -> set[str]:
        return {labels["alertname"] for labels, _ in self.query(f'ALERTS{{alertstate=~"{state}"}}')}


def configure(folder: Path, gateway: str) -> None:
    """Write the shipped files, with another target and intervals of a second, also of alerts."""
    document = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    document["global"].update(scrape_interval="1s", scrape_timeout="1s", evaluation_interval="1s")
    document["scrape_configs"][0]["static_configs"][0]["targets"] = [gateway]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(document))
    (folder / "rules").mkdir()
    for path in (SHIPPED / "rules").glob("*.yml"):
        text = re.sub(r"^( +)(?:(interval:) 15s|(for:) 1m)$", r"\1\2\3 1s", path.read_text(), flags=re.MULTILINE)
        (folder / "rules" / path.name).write_text(text)


@contextmanager
def started(folder: Path, gateway: str) -> Iterator[Prometheus]:
    configure(folder, gateway)
    (port,) = free_ports(1)
    words = [f"{BIN}/prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        with suppress(requests.ConnectionError):
            return requests.get(f"http://127.0.0.1:{port}/-/ready", timeout=5).ok
        return False

    try:
        until(is_ready)
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(60)


class Scene:
    def __init__(self, server: Server, gateway: sandbox.Sandbox, prometheus: Prometheus) -> None:
        self.server, self.gateway, self.prometheus = server, gateway, prometheus

    def send(self, name: str, body: bytes = b"Good morning, how are you?", timeout_ms: str = "") -> int:
        headers = {"Content-Type": "text/plain", **({"X-Timeout-Ms": timeout_ms} if timeout_ms else {})}
        return requests.post(f"{self.gateway.http}/predictions/{name}", body, headers=headers, timeout=60).status_code

    def warm_up(self, name: str) -> None:
        """Send until it is counted: a counter is there with its first event, and has a rate from the second on."""
        ratio, query = f'model:error_ratio:rate3d{{model="{name}"}}', self.prometheus.query
        rate = f'rate(handler_items_total{{ModelName="{name}"}}[5m]) > 0'
        # Few requests, since those of the last second are not counted yet.
        until(lambda: self.send(name) == 200 and query(ratio) and query(rate), every_s=0.2)

    def counted(self, name: str) -> tuple[float, float]:
        """Items and requests of the last five minutes, as the handler counted, and as Envoy did and a rule recorded."""
        items = f'sum(increase(handler_items_total{{ModelName="{name}"}}[5m]))'
        return self.prometheus.value(items), self.prometheus.value(f'model:requests:rate5m{{model="{name}"}} * 300')

    def load(self) -> None:
        def client(_: int) -> None:
            for number in range(ROUNDS):
                assert self.send(MODELS[number % 2]) == 200
                time.sleep(PAUSE_S)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))

    def trouble(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda _: self.send(ADAPTIVE, timeout_ms="1"), range(160)))
            list(pool.map(lambda number: self.send(MODELS[number % 2], b"\xff\xfe"), range(20)))

    def filled(self, expression: str) -> list[tuple[dict[str, str], float]]:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression.replace('"$1"', "")
        return self.prometheus.query(expression)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    store = tmp_path_factory.mktemp("store")
    # The same model in both modes, as folders: built in a second.
    Recipe(model("language-id"), archive_format="no-archive", export_path=store).build()
    adaptive = {"continuousBatching": True, "maxBatchDelay": 1}
    scheduling = {"mode": "adaptive", "latency_target_ms": 2000}
    vary(store, ADAPTIVE, "language-id", {"scheduling": scheduling}, adaptive)
    vary(store, CLASSIC, "language-id", {"scheduling": {"mode": "classic"}}, {**adaptive, "continuousBatching": False})
    with run_server(store) as server, sandbox.run_gateway([sandbox.make_node(server)]) as gateway:
        for name in MODELS:
            server.register(name, name, batch_size=32, max_batch_delay_ms=1, workers=1)
        target = gateway.metrics.removeprefix("http://").removesuffix("/metrics")
        with started(tmp_path_factory.mktemp("prometheus"), target) as running:
            subject = Scene(server, gateway, running)
            for name in MODELS:
                subject.warm_up(name)
            yield subject


def test_healthy_load_is_counted_and_raises_no_alert(scene: Scene) -> None:
    before, began, sent = {name: scene.counted(name) for name in MODELS}, time.monotonic(), CLIENTS * ROUNDS // 2

    def grown(name: str) -> list[float]:
        return [now - then for now, then in zip(scene.counted(name), before[name], strict=True)]

    scene.load()
    # Handlers report once a second, and a rate needs a sample after that.
    until(lambda: all(grown(name)[0] >= 0.95 * sent for name in MODELS))
    for name in MODELS:
        # increase() extrapolates by half a scrape on each side, and what warmed up last was not counted yet.
        assert grown(name) == pytest.approx([sent, sent], rel=0.2)
        for ratio in ("error", "refusal"):
            assert scene.prometheus.value(f'model:{ratio}_ratio:rate5m{{model="{name}"}}') == 0
    assert scene.prometheus.alerts() <= OF_TIME
    # Before the first scrape GatewayDown was right.
    duration_s = int(time.monotonic() - began) + 1
    firing = scene.prometheus.query(f'count_over_time(ALERTS{{alertstate="firing"}}[{duration_s}s])')
    assert {labels["alertname"] for labels, _ in firing} <= OF_TIME


def test_every_panel_has_data(scene: Scene) -> None:
    scene.trouble()

    def empty() -> list[str]:
        return [
            f"{title}: {query}"
            for title, queries in panels().items()
            for query in queries
            if not [value for _, value in scene.filled(query) if value == value]  # noqa: PLR0124  # no NaN
        ]

    # Quantiles want something within their 20 s.
    scene.load()
    with suppress(AssertionError):
        until(lambda: not empty(), 15)
    assert empty() == []


def test_every_recording_rule_gives_something(scene: Scene) -> None:
    groups = scene.prometheus.ask("rules", type="record")["groups"]
    rules = {rule["name"] for group in groups for rule in group["rules"]}
    assert len(rules) > 10
    assert [name for name in rules if not scene.prometheus.query(name)] == []
    assert [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []


@pytest.mark.skipif(not SCALED.exists(), reason="no overlay of KEDA in this checkout")
def test_every_query_of_keda_has_an_answer(scene: Scene) -> None:
    triggers = [each for document in yaml.safe_load_all(SCALED.read_text()) for each in document["spec"]["triggers"]]
    queries = [each["metadata"]["query"] for each in triggers if each["type"] == "prometheus"]
    # They are of one model, which is not served here.
    (name,) = {found for query in queries for found in re.findall(r'envoy_cluster_name=~"([\w.-]+)\(', query)}
    for query in queries:
        ((_, value),) = scene.prometheus.query(query.replace(name, CLASSIC))
        assert 0 <= value < 1000


def test_killed_node_is_reported_down(scene: Scene) -> None:
    assert "NodeDown" not in scene.prometheus.alerts()
    psutil.Process(scene.server.pid() or 0).kill()
    until(lambda: {"NodeDown", "ModelUnavailable"} <= scene.prometheus.alerts("firing"))
    assert not {"GatewayDown", "EnvoyDown"} & scene.prometheus.alerts()
    (down,) = (each for each in scene.prometheus.ask("alerts")["alerts"] if each["labels"]["alertname"] == "NodeDown")
    assert down["labels"]["node"] == "node-1"
    assert down["annotations"]["runbook"] == "docs/how-to/runbooks.md#nodedown"
