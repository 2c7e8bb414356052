"""The configuration of a benchmark's server."""

from dataclasses import astuple
from pathlib import Path

from deploy.models import ROOT
from deploy.sandbox import Ports, config_for

PORTS = Ports(inference=1, management=2, metrics=3, grpc_inference=4, grpc_management=5, worker=6)

TEXT = """\
# inference_address=http://0.0.0.0:8080 is no setting
inference_address=http://127.0.0.1:8080
management_address = http://127.0.0.1:8081
metrics_address=http://127.0.0.1:8082
model_store=model_store

allowed_urls=^$
metrics_config=deploy/metrics.yaml
vmargs=-Dlog4j2.configurationFile=deploy/log4j2.xml -Xmx1g
"""

EXPECTED = """\
# inference_address=http://0.0.0.0:8080 is no setting

allowed_urls=^$
inference_address=http://127.0.0.1:1
management_address=http://127.0.0.1:2
metrics_address=http://127.0.0.1:3
grpc_inference_port=4
grpc_management_port=5
initial_worker_port=6
model_store=/elsewhere/store
metrics_config=/repository/deploy/metrics.yaml
vmargs=-Dlog4j2.configurationFile=/repository/deploy/log4j2.xml -Xmx1g
"""


def test_config_for_other_ports_replaces_addresses_and_paths() -> None:
    assert config_for(TEXT, PORTS, Path("/repository"), Path("/elsewhere/store")) == EXPECTED


def test_config_for_absolute_paths_leaves_them() -> None:
    text = "metrics_config=/etc/metrics.yaml\nvmargs=-Dlog4j2.configurationFile=/etc/log4j2.xml\n"
    config = config_for(text, PORTS, Path("/repository"), Path("/elsewhere/store"))
    assert "metrics_config=/etc/metrics.yaml\n" in config
    assert "vmargs=-Dlog4j2.configurationFile=/etc/log4j2.xml\n" in config


def test_config_for_the_repository_names_every_key_once_and_existing_files() -> None:
    config = config_for((ROOT / "config.properties").read_text(), PORTS, ROOT, Path("/elsewhere/store"))
    settings = [line.split("=", 1) for line in config.splitlines() if line and not line.startswith("#")]
    keys = [key for key, _ in settings]
    assert len(keys) == len(set(keys))
    values = dict(settings)
    assert Path(values["metrics_config"]).is_file()
    assert Path(values["vmargs"].split()[0].split("=", 1)[1]).is_file()
    assert values["enable_model_api"] == "true"
    assert ":808" not in "".join(values.values())


def test_ports_free_are_all_different() -> None:
    assert len(set(astuple(Ports.free()))) == 6
