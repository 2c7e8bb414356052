"""config.properties: read as Java does, moved to other ports, safe as committed, and within the memory limit."""

import re
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.run import properties
from deploy.run.properties import MIB, ServerSettings, excess_memory, parse, relocate_config
from deploy.sandbox import make_settings
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
    settings = ServerSettings.read(path)
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
    settings = ServerSettings.read(path)
    assert (settings.job_queue_size, settings.max_request_size, settings.heap_bytes) == (100, 6553500, None)
    bad = "models={", "job_queue_size=many", "inference_address=http://127.0.0.1:http", "management_address=127.0.0.1:1"
    for line in bad:
        path.write_text(line)
        with pytest.raises(InvalidConfig, match=r"config\.properties: "):
            ServerSettings.read(path)


def test_config_of_a_server_beside_it_has_other_addresses_and_absolute_paths(tmp_path: Path) -> None:
    own = make_settings(Path("/elsewhere/store"))
    config = relocate_config(TEXT, Path("/repository"), own)
    (tmp_path / "config.properties").write_text(config)
    settings = ServerSettings.read(tmp_path / "config.properties")
    assert [str(port) for _, port in settings.ports.values()] == [
        own[name].rpartition(":")[2] for name in settings.ports
    ]
    values = parse(config)
    assert (values["model_store"], values["metrics_config"]) == ("/elsewhere/store", "/repository/deploy/metrics.yaml")
    assert "-Dlog4j2.configurationFile=/repository/deploy/log4j2.xml" in values["vmargs"]
    # Absolute paths stay.
    kept = relocate_config("metrics_config=/etc/metrics.yaml\n", Path("/repository"), {})
    assert "metrics_config=/etc/metrics.yaml\n" in kept


# -- as committed ------------------------------------------------------------------------------------------------------

# The lines that config.properties does not share with the other files.
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
    assert HandlerConfig().max_body_bytes < ServerSettings.read(ROOT / name).max_request_size


# -- memory ------------------------------------------------------------------------------------------------------------


def test_java_that_may_take_more_than_the_memory_limit_is_told_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(properties, "LIMITS", (limit, tmp_path / "missing"))
    settings = ServerSettings(heap_bytes=100 * MIB, direct_bytes=50 * MIB)
    assert excess_memory(settings) is None
    for text, problem in (
        ("max\n", None),
        (f"{150 * MIB}\n", None),
        (f"{149 * MIB}\n", r"take 150 MiB .* the memory limit is 149 MiB"),
    ):
        limit.write_text(text)
        assert re.search(problem or "^None$", str(excess_memory(settings)))
    assert excess_memory(ServerSettings()) is None
