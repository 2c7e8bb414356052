"""Adaptive batching on a real TorchServe: the answers of classic mode, and what becomes of too many requests."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import requests
import tritonclient.http as triton
import yaml
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from deploy.models import ROOT
from deploy.server import Server
from handlers.scheduling.batch_size import TUNING
from load.generate import precise_loop
from load.generate.attack import Attack, Load
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Poisson
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import NO_ANSWER, OK, Exchange, Verdict
from load.measure.latencies import Latencies
from load.measure.recording import Recording
from load.measure.server_timing import parse
from tests.e2e.conftest import MOBILENET, Answer, metrics, send, send_together, url, worker_pid
from tests.photographs import photograph
from tests.waiting import until

CLASSIC, ADAPTIVE = "sentence-embedding", "sentence-embedding-adaptive"
# Of the load tests: they have one core for the engine and one for TorchServe and whoever asks, and that other core's
# pauses are much of the archive's own 200 ms.
MAX_LATENCY_MS, ENGINE_THREADS = 400, 1
COURTEOUS_MS = TUNING.courteous_share * MAX_LATENCY_MS
# What the machine adds to a 99th percentile.
NOISE_MS = 50
NOUNS = ["river", "engine", "violin", "bread", "market", "volcano", "library", "carpet", "penguin", "vaccine"]


def texts(count: int, words: int) -> list[str]:
    """Texts no two of which have the same vector: each is about three things of its own."""
    chosen = random.Random(7)
    subjects = chosen.sample(list(combinations(NOUNS, 3)), count)
    return [" ".join(chosen.choices(subject, k=words)) for subject in subjects]


# About 200 tokens each: some tens of them a second, which leaves the server and the load generator room.
LONG_TEXTS = texts(48, 190)


@pytest.fixture(scope="module")
def _archives(model_store: Path, archive: Callable[..., str]) -> None:
    """The adaptive one as an archive, and a folder with settings for the load tests; the other as a folder, classic."""
    for name, archive_format in ((CLASSIC, "no-archive"), (ADAPTIVE, "zip-store"), (ADAPTIVE, "no-archive")):
        archive(name, archive_format=archive_format)
    path = model_store / CLASSIC / "model-config.yaml"
    config = yaml.safe_load(path.read_text())
    config["handler"]["scheduling"] = {"mode": "classic"}
    path.write_text(yaml.safe_dump({**config, "continuousBatching": False}))
    path = model_store / ADAPTIVE / "model-config.yaml"
    config = yaml.safe_load(path.read_text())
    config["handler"]["threads"] = ENGINE_THREADS
    config["handler"]["scheduling"]["max_latency_ms"] = MAX_LATENCY_MS
    path.write_text(yaml.safe_dump(config))


@pytest.fixture
def adaptive(_archives: None, serve: Callable[..., str]) -> str:
    return serve(archive=f"{ADAPTIVE}.mar", name=ADAPTIVE, batch_size=64, max_batch_delay_ms=1)


@pytest.fixture
def patient(_archives: None, serve: Callable[..., str]) -> str:
    return serve(archive=ADAPTIVE, name=ADAPTIVE, batch_size=128, max_batch_delay_ms=1)


@pytest.fixture
def classic(_archives: None, serve: Callable[..., str]) -> str:
    return serve(archive=CLASSIC, name=CLASSIC, batch_size=32, max_batch_delay_ms=1)


def vectors(server: Server, name: str, bodies: Sequence[str]) -> NDArray[np.float32]:
    """A few at a time, so that none is refused."""
    answers = []
    for start in range(0, len(bodies), 4):
        answers += send_together(server, name, [body.encode() for body in bodies[start : start + 4]])
    assert {answer.status for answer in answers} == {OK}
    return np.array([answer.body for answer in answers], np.float32)


def attack(
    server: Server, load: Load, duration_s: float, expected: NDArray[np.float32] | None = None, priority: int = 2
) -> Attack:
    """Long texts under load, answers held against their own vectors."""

    def check(source: int, body: bytes) -> Verdict:
        likeness = expected @ np.array(json.loads(body), np.float32)  # type: ignore[operator]
        if likeness.argmax() != source:
            return Verdict.SWAPPED
        return Verdict.RIGHT if likeness[source] > 0.999 else Verdict.WRONG

    headers = {"X-Priority": str(priority)}
    target = Target(url(server, ADAPTIVE), headers, 30, check if expected is not None else None)
    inputs = Inputs.of([text.encode() for text in LONG_TEXTS], "text/plain; charset=utf-8")
    return Attack(target, inputs, load, Duration(duration_s))


def exchanges(*attacks: Attack) -> list[list[Exchange]]:
    """What came of each, all at once."""

    async def generate() -> list[Recording]:
        return await asyncio.gather(*(each.generate(Recording()) for each in attacks))

    return [list(recording.exchanges) for recording in precise_loop.run(generate())]


def capacity_per_s(server: Server) -> float:
    """Long texts a second at saturation; few enough clients for none to be refused."""
    (seen,) = exchanges(attack(server, ClosedLoop(8), 3))
    good = [exchange for exchange in seen if exchange.status == OK]
    return len(good) / (max(e.answered_s for e in good) - min(e.sent_s for e in good))


def in_worker_ms(exchange: Exchange) -> float:
    """From arrival at the worker to the answer."""
    assert exchange.server_timing is not None
    return parse(exchange.server_timing)[0]["total"]


def usual_p99_ms(seen: Sequence[Exchange]) -> float:
    """In the worker, the median over windows of 5 s: where the machine stood still says nothing of the schedule."""
    windows: defaultdict[int, list[float]] = defaultdict(list)
    for exchange in seen:
        windows[int((exchange.due_s - seen[0].due_s) // 5)].append(in_worker_ms(exchange))
    return median(map(p99_ms, windows.values()))


def p99_ms(milliseconds: Iterable[float]) -> float:
    return Latencies(each / 1000 for each in milliseconds).percentile_ms(99)


# -- the same answers ------------------------------------------------------------------------------------------------

BAD_TEXTS = [b"canary \xff\xfe", b"  ", b"canary\x00", b"{", b'{"text": "canary", "top": 3}']


def test_embeddings_and_errors_are_the_same_in_both_modes(server: Server, classic: str, adaptive: str) -> None:
    mixed = [text[: 40 * (index % 20 + 1)] for index, text in enumerate(LONG_TEXTS)]
    likeness = (vectors(server, classic, mixed) * vectors(server, adaptive, mixed)).sum(axis=1)
    assert likeness.min() > 0.999
    document = (ROOT / "examples" / CLASSIC / "news.json").read_bytes()
    both = [send(server, name, document, "application/json") for name in (classic, adaptive)]
    assert [answer.status for answer in both] == [200, 200]
    np.testing.assert_allclose(both[0].body["predictions"], both[1].body["predictions"], atol=0.02)
    in_classic, in_adaptive = (
        [answer[:2] for answer in send_together(server, name, BAD_TEXTS)] for name in (classic, adaptive)
    )
    assert in_classic == in_adaptive
    assert {status for status, _ in in_adaptive} <= {200, 400}


def test_headers_decide_what_the_schedule_allows(server: Server, adaptive: str) -> None:
    def sent_with(header: str, value: str) -> requests.Response:
        return requests.post(url(server, adaptive), data=b"A text.", headers={header: value}, timeout=30)

    for header, value, type_ in (("X-Priority", "4", "InvalidPriority"), ("x-timeout-ms", "soon", "InvalidTimeout")):
        wrong = sent_with(header, value)
        assert (wrong.status_code, wrong.json()["type"]) == (400, type_)
    refused = sent_with("X-Timeout-Ms", "0.01")
    assert (refused.status_code, refused.json()["type"]) == (503, "Overloaded")
    assert refused.json()["message"].endswith("the request allows 0.01.")
    assert int(refused.headers["Retry-After"]) >= 1
    assert sent_with("X-Priority", "3").status_code == 200


def test_metadata_of_an_adaptive_model_is_asked_for_without_a_body(server: Server, adaptive: str) -> None:
    answer = requests.get(url(server, adaptive), headers={"X-Model-Metadata": "1"}, timeout=60)
    assert answer.status_code == 200
    assert (answer.json()["name"], answer.json()["mode"]) == (adaptive, "adaptive")
    assert answer.json()["outputs"] == [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}]


def test_photographs_and_errors_are_the_same_in_both_modes(
    server: Server, serve: Callable[..., str], variant: Callable[..., str]
) -> None:
    name = variant(
        "mobilenet-adaptive",
        handler={"scheduling": {"mode": "adaptive", "max_latency_ms": 5000}},
        continuousBatching=True,
        minWorkers=1,
        maxWorkers=1,
    )
    serve(archive=name, name=name, batch_size=16)
    serve()
    bodies = [photograph("chelsea"), photograph("coffee"), b"canary", photograph("chelsea")[:30_000], b""] * 4
    in_adaptive = send_together(server, name, bodies)
    assert [answer.status for answer in in_adaptive] == [200, 200, 415, 422, 400] * 4
    for ours, classic in zip(in_adaptive, send_together(server, MOBILENET, bodies), strict=True):
        assert ours.status == classic.status
        assert list(ours.body) == list(classic.body)
        if ours.status == OK:
            assert ours.body == pytest.approx(classic.body, abs=1e-4)
        else:
            assert ours.body == classic.body
    assert next(iter(in_adaptive[0].body)) == "Egyptian cat"


def test_tritons_client_gets_the_vectors_that_predictions_gives(server: Server, adaptive: str) -> None:
    with triton.InferenceServerClient(server.settings.inference_url.removeprefix("http://")) as client:
        sentences = triton.InferInput("text", [len(NOUNS), 1], "BYTES")
        sentences.set_data_from_numpy(np.array([[noun.encode()] for noun in NOUNS], object))
        result = client.infer(adaptive, [sentences]).as_numpy("embedding")
        numbers = triton.InferInput("text", [2], "INT64").set_data_from_numpy(np.array([1, 2]))
        with pytest.raises(InferenceServerException) as refused:
            client.infer(adaptive, [numbers])
    assert refused.value.status() == "400"
    assert (result * vectors(server, adaptive, NOUNS)).sum(axis=1).min() > 0.999


SERIES = (
    "handler_engine_busy_seconds_total",
    "handler_exchanges_total",
    "handler_queue_depth_count",
    "handler_queue_age_seconds_count",
    "handler_forward_prediction_ratio_count",
)


def test_metrics_of_the_schedule_reach_prometheus(server: Server, adaptive: str) -> None:
    def seen() -> dict[str, float]:
        series = {name: value for name, value in metrics(server).items() if f'ModelName="{adaptive}"' in name}
        return {name.partition("{")[0]: value for name, value in series.items()}

    before = seen()
    vectors(server, adaptive, NOUNS)
    until(lambda: all(seen().get(name, 0) > before.get(name, 0) for name in SERIES))


# -- too many requests -----------------------------------------------------------------------------------------------


def test_three_times_capacity_is_answered_to_the_last_and_what_is_accepted_is_in_time(
    server: Server, patient: str
) -> None:
    expected = vectors(server, patient, LONG_TEXTS)
    capacity = capacity_per_s(server)
    (seen,) = exchanges(attack(server, OpenLoop(Poisson(3 * capacity)), 30, expected))
    statuses = Counter(exchange.status for exchange in seen)
    assert statuses.keys() <= {200, 503, 504}, statuses
    assert {exchange.verdict for exchange in seen if exchange.status == OK} == {Verdict.RIGHT}
    # What TorchServe itself refuses, with its queue full, the worker never sees.
    by_worker = [exchange for exchange in seen if exchange.server_timing is not None]
    refused = [exchange for exchange in by_worker if exchange.status == 503]
    accepted = [exchange for exchange in by_worker if exchange.status == OK]
    assert len(seen) > 25 * 3 * capacity
    assert len(accepted) > 30 * capacity / 2
    assert len(refused) > len(seen) / 4
    assert usual_p99_ms(refused) <= 100
    assert usual_p99_ms(accepted) <= MAX_LATENCY_MS + NOISE_MS


def test_flood_of_the_last_priority_leaves_the_first_its_latency(server: Server, patient: str) -> None:
    capacity = capacity_per_s(server)
    first = attack(server, OpenLoop(Poisson(capacity / 6, seed=1)), 6, priority=1)
    flood = attack(server, OpenLoop(Poisson(2 * capacity, seed=2)), 6, priority=3)
    (alone,) = exchanges(first)
    beside, others = exchanges(first, flood)
    assert {exchange.status for exchange in alone} == {exchange.status for exchange in beside} == {OK}
    assert sum(exchange.status == 503 for exchange in others) > len(others) / 4
    alone_ms, beside_ms = (p99_ms(1000 * exchange.latency_s for exchange in seen) for seen in (alone, beside))
    # One of the flood's passes runs whenever somebody comes, and another one starts before the frontend is asked.
    assert beside_ms <= alone_ms + 2 * COURTEOUS_MS + NOISE_MS


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_worker_killed_mid_batch_comes_back_and_every_request_is_answered(server: Server, adaptive: str) -> None:
    answers: list[Answer] = []
    is_over = threading.Event()

    def client(number: int) -> None:
        while not is_over.is_set():
            answers.append(send(server, adaptive, LONG_TEXTS[number].encode()))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) > 32)
    killed = worker_pid(server, ADAPTIVE)
    os.kill(killed, signal.SIGKILL)
    until(lambda: server.management.is_ready(adaptive) and worker_pid(server, ADAPTIVE) != killed)
    before = len(answers)
    until(lambda: len(answers) > before + 32)
    is_over.set()
    for thread in threads:
        # A request without an answer would have failed its thread, and with it the test.
        thread.join(60)
        assert not thread.is_alive()
    statuses = Counter(answer.status for answer in answers)
    assert statuses.keys() <= {200, 500, 503, 507}, statuses
    assert statuses[500] + statuses[507] >= 1
    assert Counter(answer.status for answer in answers[-16:])[200] >= 1


def test_model_unregistered_and_registered_again_under_load_loses_none_but_what_it_was_working_on(
    server: Server, adaptive: str, serve: Callable[..., str]
) -> None:
    """TorchServe kills the worker of a model that is unregistered, and may never answer what was in it: drain first."""
    gone: list[float] = []
    statuses_while_gone: list[int] = []

    def replace_model() -> None:
        time.sleep(1)
        gone.append(time.perf_counter())
        server.management.unregister(ADAPTIVE)
        gone.append(time.perf_counter())
        statuses_while_gone.append(send(server, ADAPTIVE, b"Is anybody there?").status)
        time.sleep(1)
        serve(archive=f"{ADAPTIVE}.mar", name=ADAPTIVE, batch_size=64, max_batch_delay_ms=1)

    replacing = threading.Thread(target=replace_model)
    replacing.start()
    seen: list[Exchange] = []
    while replacing.is_alive():
        seen += exchanges(attack(server, OpenLoop(Poisson(30)), 1))[0]
    (after,) = exchanges(attack(server, OpenLoop(Poisson(30)), 1))
    unanswered = [exchange for exchange in seen if exchange.status == NO_ANSWER]
    assert {exchange.status for exchange in seen} - {NO_ANSWER} <= {200, 404, 500, 503, 507}
    assert OK in {exchange.status for exchange in seen}
    assert statuses_while_gone == [404]
    began_s, ended_s = gone
    # A request takes some tens of milliseconds, and waits at most for its target.
    assert all(began_s - 1 < exchange.sent_s < ended_s for exchange in unanswered)
    assert {exchange.status for exchange in after} == {OK}
