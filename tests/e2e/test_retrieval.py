"""Models beyond one vector on a real TorchServe, through the gateway, beside one process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from load.sandbox import Sandbox
from tests import retrieval_rows as rows
from tests.e2e.conftest import Make
from tests.waiting import until


@pytest.mark.timeout(900)
def test_each_answer_and_error_is_that_of_one_process(
    gateway: Sandbox, archive: Make, serve: Make, model_store: Path, tmp_path: Path
) -> None:
    built = {
        entry.name: archive(entry, weights, comparisons=None) for entry, weights in rows.entries(tmp_path / "models")
    }
    with rows.one_process(model_store) as url, ThreadPoolExecutor(2) as pool:
        served = pool.map(lambda name: serve(archive=built[name], name=name, max_batch_delay_ms=1), built)
        expected = rows.answers(url)
        for name in served:
            described = f"{gateway.http}/v2/models/{name}"
            until(lambda described=described: requests.get(f"{described}/ready", timeout=60).ok)  # type: ignore[misc]
            until(lambda described=described: requests.get(described, timeout=60).json().get("inputs"))  # type: ignore[misc]
    rows.assert_as_one_process(gateway.http, expected)
