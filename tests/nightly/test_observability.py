"""A real Prometheus with the shipped rules on a live gateway and TorchServe: every query has an answer, and it is so.

One scene for the module, in this order: a healthy load that is counted, refusals and errors, the node killed at last.
"""

import json
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import yaml

from deploy import sandbox
from deploy.archives.archive import Recipe
from deploy.models import ROOT, model
from deploy.run.server import Server
from deploy.sandbox import run_server
from tests.nightly import prometheus
from tests.nightly.prometheus import Prometheus, panels

CLASSIC, ADAPTIVE = "language-id", "language-id-adaptive"
MODELS = (CLASSIC, ADAPTIVE)
# The values of the dashboard's variables, with everything selected.
VARIABLES = {"${model:pipe}": ".*", "$model": ".*", "$version": ".*", "$node": ".*", "$__rate_interval": "20s"}
# A machine that stalls raises these by itself.
OF_TIME = {"SlowerThanPredicted", "DeadlineMisses", "QueueAge"}
SCALED = ROOT / "deploy" / "kubernetes" / "overlays" / "keda" / "scaledobject.yaml"
CLIENTS, ROUNDS, PAUSE_S = 4, 60, 0.05


class Scene:
    def __init__(self, server: Server, gateway: sandbox.Sandbox, prometheus: Prometheus) -> None:
        self.server, self.gateway, self.prometheus = server, gateway, prometheus
        self.sent: Counter[str] = Counter()

    def send(self, name: str, body: bytes = b"Good morning, how are you?", **headers: str) -> int:
        named = {"Content-Type": "text/plain", **{key.replace("_", "-"): value for key, value in headers.items()}}
        with requests.Session() as session:
            session.trust_env = False
            answer = session.post(f"{self.gateway.http}/predictions/{name}", data=body, headers=named, timeout=60)
        return answer.status_code

    def warm_up(self, name: str) -> None:
        """Send until it is counted: a counter is there with its first event, and has a rate from the second on."""
        asked = (
            f'model:error_ratio:rate3d{{model="{name}"}}',
            f'rate(handler_items_total{{ModelName="{name}"}}[5m]) > 0',
        )
        self.prometheus.until(
            lambda: self.send(name) == 200 and all(self.prometheus.query(expression) for expression in asked)
        )

    def items(self, name: str) -> float:
        return self.prometheus.value(f'sum(increase(handler_items_total{{ModelName="{name}"}}[5m]))')

    def requests(self, name: str) -> float:
        """Requests of the last five minutes, as Envoy counted them and a rule recorded it."""
        return self.prometheus.value(f'model:requests:rate5m{{model="{name}"}} * 300')

    def load(self) -> None:
        def client(_: int) -> None:
            for number in range(ROUNDS):
                assert self.send(MODELS[number % 2]) == 200
                time.sleep(PAUSE_S)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))
        self.sent.update(dict.fromkeys(MODELS, CLIENTS * ROUNDS // 2))

    def trouble(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda _: self.send(ADAPTIVE, X_Timeout_Ms="1"), range(160)))
            list(pool.map(lambda number: self.send(MODELS[number % 2], b"\xff\xfe"), range(20)))

    def filled(self, expression: str) -> list[tuple[dict[str, str], float]]:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression.replace('"$1"', "")
        return self.prometheus.query(expression)


def archives(store: Path) -> None:
    """The same model in both modes, as folders: built in a second."""
    Recipe(model(CLASSIC), archive_format="no-archive", export_path=store).build()
    shutil.copytree(store / CLASSIC, store / ADAPTIVE)
    manifest = store / ADAPTIVE / "MAR-INF" / "MANIFEST.json"
    document = json.loads(manifest.read_text())
    document["model"]["modelName"] = ADAPTIVE
    manifest.write_text(json.dumps(document))
    for name, scheduling in (
        (CLASSIC, {"mode": "classic"}),
        (ADAPTIVE, {"mode": "adaptive", "latency_target_ms": 2000}),
    ):
        settings = store / name / "model-config.yaml"
        config = {**yaml.safe_load(settings.read_text()), "continuousBatching": name == ADAPTIVE, "maxBatchDelay": 1}
        config["handler"] = {**(config.get("handler") or {}), "scheduling": scheduling}
        settings.write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    store = tmp_path_factory.mktemp("store")
    archives(store)
    with run_server(store) as server, sandbox.run_gateway([sandbox.make_node(server)]) as gateway:
        for name in MODELS:
            server.register(name, name, batch_size=32, max_batch_delay_ms=1, workers=1)
        target = gateway.metrics.removeprefix("http://").removesuffix("/metrics")
        with prometheus.started(tmp_path_factory.mktemp("prometheus"), target) as running:
            subject = Scene(server, gateway, running)
            for name in MODELS:
                subject.warm_up(name)
            yield subject


def test_healthy_load_is_counted_and_raises_no_alert(scene: Scene) -> None:
    before, began = {name: (scene.items(name), scene.requests(name)) for name in MODELS}, time.monotonic()
    scene.load()
    # Handlers report once a second, and a rate needs a sample after that.
    scene.prometheus.until(
        lambda: all(scene.items(name) - before[name][0] >= 0.95 * scene.sent[name] for name in MODELS)
    )
    for name in MODELS:
        # increase() extrapolates by half a scrape on each side, and what warmed up last was not counted yet.
        expected = pytest.approx(scene.sent[name], rel=0.2)
        assert scene.items(name) - before[name][0] == expected
        assert scene.requests(name) - before[name][1] == expected
        assert scene.prometheus.value(f'model:error_ratio:rate5m{{model="{name}"}}') == 0
        assert scene.prometheus.value(f'model:refusal_ratio:rate5m{{model="{name}"}}') == 0
    assert set(scene.prometheus.alerts()) <= OF_TIME
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
    try:
        scene.prometheus.until(lambda: not empty(), 15)
    except AssertionError:
        pytest.fail("\n".join(empty()))


def test_every_recording_rule_gives_something(scene: Scene) -> None:
    groups = scene.prometheus.ask("rules", type="record")["groups"]
    rules = {rule["name"] for group in groups for rule in group["rules"]}
    assert len(rules) > 10
    assert [name for name in rules if not scene.prometheus.query(name)] == []
    assert [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []


@pytest.mark.skipif(not SCALED.exists(), reason="no overlay of KEDA in this checkout")
def test_every_query_of_keda_has_an_answer(scene: Scene) -> None:
    documents = list(yaml.safe_load_all(SCALED.read_text()))
    queries = [
        trigger["metadata"]["query"]
        for document in documents
        for trigger in document["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]
    assert queries
    # They are of one model, which is not served here.
    (name,) = {found for query in queries for found in re.findall(r'envoy_cluster_name=~"([\w.-]+)\(', query)}
    for query in queries:
        ((_, value),) = scene.prometheus.query(query.replace(name, CLASSIC))
        assert 0 <= value < 1000


def test_killed_node_is_reported_down(scene: Scene) -> None:
    assert "NodeDown" not in scene.prometheus.alerts()
    pid = scene.server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    scene.prometheus.until(lambda: scene.prometheus.alerts().get("NodeDown") == "firing")
    scene.prometheus.until(lambda: scene.prometheus.alerts().get("ModelUnavailable") == "firing")
    assert "GatewayDown" not in scene.prometheus.alerts()
    assert "EnvoyDown" not in scene.prometheus.alerts()
    (down,) = (each for each in scene.prometheus.ask("alerts")["alerts"] if each["labels"]["alertname"] == "NodeDown")
    assert down["labels"]["node"] == "node-1"
    assert down["annotations"]["runbook"] == "docs/how-to/runbooks.md#nodedown"
