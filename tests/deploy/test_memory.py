"""The worst case of what a server may hold, and the heaps of the committed configurations."""

import re
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from deploy.memory import MIB, Need, Served, need, region_bytes, too_little
from deploy.models import MODEL_LIST, ROOT, models
from deploy.properties import Settings
from handlers.config import HandlerConfig

SMALL = Settings(max_request_size=MIB, threads=2, heap_bytes=1024 * MIB, direct_bytes=1024 * MIB)
CONFIGS = ["config.properties", "config.production.properties", "config.large-bodies.properties"]


@pytest.mark.parametrize(
    ("heap_mib", "region_mib"), [(64, 1), (1024, 1), (2048, 1), (2049, 2), (4096, 2), (6028, 4), (200_000, 32)]
)
def test_region_is_that_of_java_17(heap_mib: int, region_mib: int) -> None:
    """6,028 MiB took 4 MiB, as `java -XX:+PrintFlagsFinal` says."""
    assert region_bytes(heap_mib * MIB) == region_mib * MIB


def test_need_counts_queues_batches_and_copies_of_every_model() -> None:
    # A body of 1 MiB takes two regions: its array has a header. (64 + 2 * (10 + 2 + 20 + 4 + 2 * 2)) / 0.8
    wanted = need(SMALL, [Served(queue=10, in_flight=2), Served(queue=20, in_flight=4)])
    assert wanted == Need(heap_bytes=180 * MIB, direct_bytes=(54 + 12) * MIB)


def test_served_is_read_from_what_torchserve_describes() -> None:
    described = {
        "batchSize": 8,
        "maxWorkers": 2,
        "workers": [{}],
        "jobQueueStatus": {"remainingCapacity": 60, "pendingRequests": 4},
    }
    assert Served.described(described) == Served(queue=64, in_flight=16)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (SMALL, None),
        (replace(SMALL, heap_bytes=100 * MIB), r"36 requests .* max_request_size 1048576: that needs -Xmx180m"),
        (replace(SMALL, direct_bytes=65 * MIB), "MaxDirectMemorySize=66m, and vmargs gives 1024m and 65m"),
        (replace(SMALL, heap_bytes=None), "vmargs names no -Xmx"),
    ],
)
def test_too_little_says_what_is_needed(settings: Settings, line: str | None) -> None:
    said = too_little(settings, [Served(queue=10, in_flight=2), Served(queue=20, in_flight=4)])
    if line is None:
        assert said is None
    else:
        assert said is not None
        assert re.search(line, said)


def examples(settings: Settings) -> dict[str, Served]:
    """Every example with its own configuration, one worker each."""
    found = {}
    for path in (MODEL_LIST, ROOT / "examples" / "custom-task" / "models.yaml"):
        for name, model in models(path).items():
            config = model.config()
            found[name] = Served(config.get("jobQueueSize", settings.job_queue_size), config["batchSize"])
    return found


@pytest.mark.parametrize("config", CONFIGS)
def test_every_example_fits_the_heap_of_every_configuration(config: str) -> None:
    settings = Settings.read(ROOT / config)
    assert {name: too_little(settings, [served]) for name, served in examples(settings).items()} == dict.fromkeys(
        examples(settings)
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_what_make_serve_serves_together_fits_the_heap(config: str) -> None:
    settings = Settings.read(ROOT / config)
    images = [examples(settings)[name] for name in ("resnet-152", "mobilenet-v2")]
    for pair in combinations_with_replacement(images, 2):
        assert too_little(settings, pair) is None


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations_end_the_process_when_the_heap_is_full(config: str) -> None:
    assert "-XX:+ExitOnOutOfMemoryError" in (ROOT / config).read_text().rpartition("vmargs=")[2]
    assert "prefer_direct_buffer=true" in (ROOT / config).read_text()


@pytest.mark.parametrize("config", CONFIGS)
def test_models_refuse_a_body_in_json_before_the_server_does_without(config: str) -> None:
    assert HandlerConfig().max_body_bytes < Settings.read(ROOT / config).max_request_size
