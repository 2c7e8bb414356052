"""A plain archive, registered as people do: adaptive, and what that means on a real TorchServe."""

import pytest
import requests

from deploy.nodes.run.server import Server
from tests.e2e.conftest import STARTUP_TIMEOUT_S, Make, Registrations, metrics, send_together, url
from tests.e2e.test_conformance import assert_grpc_answers_like_http
from tests.waiting import until
from torchserve_client.errors import InvalidPayload
from torchserve_client.worker_log import WorkerLog

NAME = "sentence-embedding"
TEXTS = [b"Guten Tag, wie geht es Ihnen heute?", b"The ferry leaves at seven in the morning."]
SERIES = (
    "handler_engine_busy_seconds_total",
    "handler_exchanges_total",
    "handler_queue_depth_count",
    "handler_queue_age_seconds_count",
    "handler_forward_prediction_ratio_count",
)


def test_plain_registration_has_one_adaptive_worker_that_answers_everybody_as_headers_allow_and_is_counted(
    server: Server, registrations: Registrations, archive: Make
) -> None:
    models, file = f"{server.settings.management_url}/models", archive(NAME)

    def registered(query: str) -> list[int]:
        requests.post(f"{models}?url={file}&{query}", timeout=60).raise_for_status()
        described = server.management.describe(NAME)
        return [described[name] for name in ("batchSize", "maxBatchDelay", "minWorkers", "maxWorkers")]

    # As of classic days.
    assert registered("batch_size=8&max_batch_delay=50&initial_workers=0")[:2] == [8, 50]
    registrations.clear()
    assert registered("initial_workers=4&synchronous=true") == [64, 1, 1, 1]
    server.management.wait_ready(NAME, timeout_s=STARTUP_TIMEOUT_S)
    with pytest.raises(InvalidPayload, match=f"{NAME}.*one worker"):
        server.management.scale(NAME, 2)
    log = WorkerLog(server.logs / "model_log.log", NAME)
    requests.put(f"{models}/{NAME}?min_worker=2&max_worker=2", timeout=60).raise_for_status()
    reasons: list[str | None] = []
    until(lambda: reasons.append(log.reason()) or reasons[-1], STARTUP_TIMEOUT_S)  # type: ignore[func-returns-value]
    assert "another worker" in str(reasons[-1])
    # e2e/test_tasks.py compares the answers.
    assert [answer.status for answer in send_together(server, NAME, TEXTS * 10)] == [200] * 20
    requests.put(f"{models}/{NAME}?min_worker=1&max_worker=1", timeout=60).raise_for_status()
    assert_grpc_answers_like_http(server, NAME)
    explained = requests.post(url(server, NAME).replace("predictions", "explanations"), data=TEXTS[0], timeout=60)
    assert (explained.status_code, explained.json()["type"]) == (501, "NotImplemented")

    def sent_with(header: str, value: str) -> requests.Response:
        return requests.post(url(server, NAME), data=TEXTS[1], headers={header: value}, timeout=60)

    for header, value, type_ in (("X-Priority", "2", "InvalidPriority"), ("x-timeout-ms", "soon", "InvalidTimeout")):
        wrong = sent_with(header, value)
        assert (wrong.status_code, wrong.json()["type"]) == (400, type_)
    # A request that no processor can answer in time is rejected at once; one that every processor can is not.
    rejected = sent_with("X-Timeout-Ms", "0.01")
    assert (rejected.status_code, rejected.json()["type"]) == (503, "Overloaded")
    assert "0.01" in rejected.json()["message"]
    assert int(rejected.headers["Retry-After"]) >= 1
    assert [sent_with("X-Priority", "1").status_code, sent_with("X-Timeout-Ms", "60000").status_code] == [200, 200]

    def seen() -> dict[str, float]:
        series = {name: value for name, value in metrics(server).items() if f'ModelName="{NAME}"' in name}
        return {name.partition("{")[0]: value for name, value in series.items()}

    until(lambda: all(seen().get(name, 0) > 0 for name in SERIES))
