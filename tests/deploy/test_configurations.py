"""config.properties: read as Java does, moved to other ports, safe as committed, and within the memory limit."""

import re
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.nodes.run import properties
from deploy.nodes.run.properties import MIB, ServerSettings, excess_memory, parse, relocate_config
from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig
from load.sandbox import make_settings

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
OTHERS = """
model_store=a
metrics_config=b
max_request_size=9
enable_model_api=TRUE
disable_token_authorization=True
load_models=c , ,d
management_address=http://h:1
metrics_address=http://h:2
grpc_inference_address=i
vmargs=-Xmx3k
"""
# The lines that config.properties does not share with the other files.
DIFFERENCES = {
    "config.properties": set[str](),
    "config.production.properties": {
        *("disable_token_authorization", "token_expiration_min", "enable_model_api", "load_models", "models")
    },
    "config.large-bodies.properties": {"max_request_size", "job_queue_size", "vmargs"},
}


def test_settings_are_read_as_torchserve_takes_them_and_moved_to_other_addresses(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(TEXT)
    values = parse(TEXT)
    assert values["ends_in_backslashes"] == r"C:\\" and "so" not in values
    settings = ServerSettings.read(path)
    assert settings.models == {"resnet-152": {"1.0": {"minWorkers": 1}}}
    assert settings.load_models == ("resnet-152.mar", "other=archive.mar")
    assert settings.has_tokens and not settings.has_model_api
    assert (settings.job_queue_size, settings.heap_bytes, settings.direct_bytes) == (7, 2**30, 2 * 2**30)
    ports = {"inference_address": 8443, "management_address": 8081, "metrics_address": 8082}
    ports |= {"grpc_inference_port": 7070, "grpc_management_port": 17071}
    assert settings.ports == {name: ("127.0.0.1", port) for name, port in ports.items()}
    path.write_text("")
    settings = ServerSettings.read(path)
    assert (settings.job_queue_size, settings.max_request_size, settings.heap_bytes) == (100, 6553500, None)
    path.write_text(OTHERS)
    settings = ServerSettings.read(path)
    assert (settings.model_store, settings.metrics_config, settings.max_request_size) == ("a", "b", 9)
    assert (settings.has_tokens, settings.has_model_api, settings.load_models) == (False, True, ("c", "d"))
    assert [*settings.ports.values()] == [("127.0.0.1", 8080), ("h", 1), ("h", 2), ("i", 7070), ("127.0.0.1", 7071)]
    assert (settings.heap_bytes, settings.direct_bytes) == (3 << 10, 3 << 10)  # Java's default
    bad = "models={", "job_queue_size=many", "inference_address=http://127.0.0.1:http", "management_address=127.0.0.1:1"
    for line in bad:
        path.write_text(line)
        with pytest.raises(InvalidConfig, match=r"config\.properties: "):
            ServerSettings.read(path)
    own = make_settings(Path("/elsewhere/store"))
    config = relocate_config(TEXT, Path("/repository"), own)
    (tmp_path / "config.properties").write_text(config)
    found = ServerSettings.read(tmp_path / "config.properties").ports
    assert [str(port) for _, port in found.values()] == [own[name].rpartition(":")[2] for name in found]
    values = parse(config)
    assert (values["model_store"], values["metrics_config"]) == ("/elsewhere/store", "/repository/deploy/metrics.yaml")
    assert "-Dlog4j2.configurationFile=/repository/deploy/log4j2.xml" in values["vmargs"]
    kept = relocate_config("metrics_config=/etc/metrics.yaml\n", Path("/repository"), {})
    assert "metrics_config=/etc/metrics.yaml\n" in kept


@pytest.mark.parametrize("name", DIFFERENCES)
def test_config_listens_on_loopback_takes_archives_from_the_store_alone_and_dies_when_full(name: str) -> None:
    development, own = (parse((ROOT / each).read_text()) for each in ("config.properties", name))
    for key in ("inference_address", "management_address", "metrics_address"):
        assert own[key].startswith("http://127.0.0.1:")
    assert {own[f"grpc_{api}_address"] for api in ("inference", "management")} == {"127.0.0.1"}
    for key in ("disable_token_authorization", "enable_model_api"):
        assert own[key] == ("false" if "production" in name else "true")
    assert (own["allowed_urls"], own["install_py_dep_per_model"], own["metrics_mode"]) == ("^$", "false", "prometheus")
    assert "-XX:+ExitOnOutOfMemoryError" in own["vmargs"] and own["prefer_direct_buffer"] == "true"
    assert {key for key in development | own if development.get(key) != own.get(key)} == DIFFERENCES[name]
    # A model rejects a body in JSON before the server does so without a word.
    assert HandlerConfig().max_body_bytes < ServerSettings.read(ROOT / name).max_request_size


def test_java_that_may_exceed_the_memory_limit_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(properties, "LIMITS", (limit, tmp_path / "missing"))
    settings = ServerSettings(heap_bytes=100 * MIB, direct_bytes=50 * MIB)
    assert excess_memory(settings) is None
    for text in ("max\n", f"{150 * MIB}\n"):
        limit.write_text(text)
        assert excess_memory(settings) is None
    limit.write_text(f"{149 * MIB}\n")
    assert re.search(r"take 150 MiB .* the memory limit is 149 MiB", str(excess_memory(settings)))
    assert excess_memory(ServerSettings()) is None
