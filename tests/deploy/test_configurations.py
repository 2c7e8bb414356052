"""config.properties: read as Java does, moved to other ports, safe as committed, and with memory for what may queue."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.models import MODEL_LIST, ROOT, models
from deploy.run.production import MIB, held_requests, java_memory, too_little_memory
from deploy.run.properties import Settings, moved, parse
from deploy.sandbox import own_settings
from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig

CONFIGS = ["config.properties", "config.production.properties", "config.large-bodies.properties"]

TEXT = r"""
# models={"commented": {}}
! so=is this
models={"resnet-152": { \
    "1.0": {"minWorkers": 1}}}
load_models = resnet-152.mar, other=archive.mar
job_queue_size:7
vmargs=-Xmx512m -XX:MaxDirectMemorySize=2g -Xmx1G -Dlog4j2.configurationFile=deploy/log4j2.xml
inference_address=http://127.0.0.1:8443/
grpc_management_port=17071
metrics_config=deploy/metrics.yaml
ends_in_backslashes=C:\\
enable_model_api=true
enable_model_api=false
"""


def test_settings_are_read_as_torchserve_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(TEXT)
    values = parse(TEXT)
    assert values["ends_in_backslashes"] == r"C:\\"
    assert "so" not in values
    settings = Settings.read(path)
    assert settings.models == {"resnet-152": {"1.0": {"minWorkers": 1}}}
    assert settings.load_models == ("resnet-152.mar", "other=archive.mar")
    assert settings.has_tokens
    # The last of a name.
    assert not settings.has_model_api
    assert (settings.job_queue_size, settings.heap_bytes, settings.direct_bytes) == (7, 2**30, 2 * 2**30)
    assert settings.ports == {
        "inference_address": ("127.0.0.1", 8443),
        "management_address": ("127.0.0.1", 8081),
        "metrics_address": ("127.0.0.1", 8082),
        "grpc_inference_port": ("127.0.0.1", 7070),
        "grpc_management_port": ("127.0.0.1", 17071),
    }
    path.write_text("")
    settings = Settings.read(path)
    assert (settings.job_queue_size, settings.max_request_size, settings.heap_bytes) == (100, 6553500, None)
    bad = "models={", "job_queue_size=many", "inference_address=http://127.0.0.1:http", "management_address=127.0.0.1:1"
    for line in bad:
        path.write_text(line)
        with pytest.raises(InvalidConfig, match=r"config\.properties: "):
            Settings.read(path)


def test_config_of_a_server_beside_it_has_other_addresses_and_absolute_paths(tmp_path: Path) -> None:
    own = own_settings(Path("/elsewhere/store"))
    config = moved(TEXT, Path("/repository"), own)
    (tmp_path / "config.properties").write_text(config)
    settings = Settings.read(tmp_path / "config.properties")
    assert [str(port) for _, port in settings.ports.values()] == [
        own[name].rpartition(":")[2] for name in settings.ports
    ]
    values = parse(config)
    assert (values["model_store"], values["metrics_config"]) == ("/elsewhere/store", "/repository/deploy/metrics.yaml")
    assert "-Dlog4j2.configurationFile=/repository/deploy/log4j2.xml" in values["vmargs"]
    # What is absolute stays.
    kept = moved("metrics_config=/etc/metrics.yaml\n", Path("/repository"), {})
    assert "metrics_config=/etc/metrics.yaml\n" in kept


# -- as committed ------------------------------------------------------------------------------------------------------

# What config.properties does not have in common with the others; everything else says the same thing once.
DIFFERENCES = {
    "config.properties": set[str](),
    "config.production.properties": {
        *("disable_token_authorization", "token_expiration_min", "enable_model_api", "load_models", "models")
    },
    "config.large-bodies.properties": {"max_request_size", "job_queue_size", "vmargs"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_listens_on_loopback_takes_archives_from_the_store_alone_and_dies_when_full(name: str) -> None:
    development, own = (parse((ROOT / each).read_text()) for each in ("config.properties", name))
    for key in ("inference_address", "management_address", "metrics_address"):
        assert own[key].startswith("http://127.0.0.1:")
    assert {own[f"grpc_{api}_address"] for api in ("inference", "management")} == {"127.0.0.1"}
    is_production = "production" in name
    assert own["disable_token_authorization"] == ("false" if is_production else "true")
    assert own["enable_model_api"] == ("false" if is_production else "true")
    assert (own["allowed_urls"], own["install_py_dep_per_model"], own["metrics_mode"]) == ("^$", "false", "prometheus")
    assert "-XX:+ExitOnOutOfMemoryError" in own["vmargs"]
    assert own["prefer_direct_buffer"] == "true"
    assert {key for key in development | own if development.get(key) != own.get(key)} == DIFFERENCES[name]
    # A model refuses a body in JSON before the server does so without a word.
    assert HandlerConfig().max_body_bytes < Settings.read(ROOT / name).max_request_size


# -- memory ------------------------------------------------------------------------------------------------------------


def test_too_little_memory_says_what_queues_batches_and_copies_of_every_model_need() -> None:
    described: list[dict[str, Any]] = [
        {
            "batchSize": 2, "maxWorkers": workers, "workers": [{}],
            "jobQueueStatus": {"remainingCapacity": 10 * workers - 4, "pendingRequests": 4},
        }
        for workers in (1, 2)
    ]  # fmt: skip
    assert (held := held_requests(described)) == (30, 6)
    settings = Settings(max_request_size=MIB, threads=2, heap_bytes=1024 * MIB, direct_bytes=1024 * MIB)
    # A body of 1 MiB takes two regions: its array has a header. (64 + 2 * (30 + 6 + 2 * 2)) / 0.8
    assert java_memory(settings, *held) == (180 * MIB, (54 + 12) * MIB)
    assert too_little_memory(settings, *held) is None
    for lacking, line in (
        (replace(settings, heap_bytes=100 * MIB), r"36 requests .* max_request_size 1048576: that needs -Xmx180m"),
        (replace(settings, direct_bytes=65 * MIB), "MaxDirectMemorySize=66m, and vmargs gives 1024m and 65m"),
        (replace(settings, heap_bytes=None), "vmargs names no -Xmx"),
    ):
        assert re.search(line, too_little_memory(lacking, *held) or "")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_example_and_what_make_serve_serves_together_fits_the_heap(name: str) -> None:
    settings = Settings.read(ROOT / name)
    for path in (MODEL_LIST, ROOT / "examples" / "custom-task" / "models.yaml"):
        for model in models(path).values():
            config = model.config()
            queued = config.get("jobQueueSize", settings.job_queue_size)
            assert too_little_memory(settings, queued, config["batchSize"]) is None
    # make serve has one model, and a rollout registers another version of it beside the first.
    batch_size = max(
        model.config()["batchSize"] for model in map(models().get, ("resnet-152", "mobilenet-v2")) if model
    )
    assert too_little_memory(settings, 2 * settings.job_queue_size, 2 * batch_size) is None
