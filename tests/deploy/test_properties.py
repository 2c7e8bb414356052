"""config.properties as Java reads it."""

from pathlib import Path

import pytest

from deploy.properties import Settings, parse
from handlers.errors import InvalidConfig

TEXT = r"""
# models={"commented": {}}
! so=is this
models={"resnet-152": { \
    "1.0": {"minWorkers": 1}}}
load_models = resnet-152.mar, other=archive.mar
job_queue_size:7
vmargs=-Xmx512m -XX:MaxDirectMemorySize=2g -Xmx1G
inference_address=http://127.0.0.1:8443/
grpc_management_port=17071
ends_in_backslashes=C:\\
enable_model_api=true
enable_model_api=false
"""


def test_parse_joins_lines_and_takes_the_last_of_a_name() -> None:
    values = parse(TEXT)
    assert values["models"] == '{"resnet-152": { "1.0": {"minWorkers": 1}}}'
    assert values["ends_in_backslashes"] == r"C:\\"
    assert values["enable_model_api"] == "false"
    assert "so" not in values


def test_settings_are_read_as_torchserve_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(TEXT)
    settings = Settings.read(path)
    assert settings.models == {"resnet-152": {"1.0": {"minWorkers": 1}}}
    assert settings.load_models == ("resnet-152.mar", "other=archive.mar")
    assert settings.has_tokens
    assert not settings.has_model_api
    assert (settings.job_queue_size, settings.heap_bytes, settings.direct_bytes) == (7, 2**30, 2 * 2**30)
    assert settings.ports == {
        "inference_address": ("127.0.0.1", 8443),
        "management_address": ("127.0.0.1", 8081),
        "metrics_address": ("127.0.0.1", 8082),
        "grpc_inference_port": ("127.0.0.1", 7070),
        "grpc_management_port": ("127.0.0.1", 17071),
    }


def test_settings_of_an_empty_file_are_torchserves_own(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("")
    settings = Settings.read(path)
    assert (settings.inference_url, settings.management_url) == ("http://127.0.0.1:8080", "http://127.0.0.1:8081")
    assert (settings.job_queue_size, settings.max_request_size, settings.heap_bytes) == (100, 6553500, None)


@pytest.mark.parametrize("line", ["models={", "job_queue_size=many", "inference_address=http://127.0.0.1:http"])
def test_settings_that_are_broken_name_the_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "config.properties"
    path.write_text(line)
    with pytest.raises(InvalidConfig, match=r"config\.properties: "):
        Settings.read(path)
