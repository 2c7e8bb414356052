"""The shell blocks of the README and the pages that follow it, in a fresh copy with an environment of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deploy.models import ROOT, model
from deploy.sandbox import Ports, config_for, free_ports
from deploy.sources import source
from deploy.weights import load
from tests.exports import shared
from tests.pages import RUN_PAGES, blocks

# Ports that the pages name; the test's own stand in, so that it runs beside a server.
INFERENCE, MANAGEMENT, METRICS = "8080", "8081", "8082"
GATEWAY = {"http": "8000", "grpc": "8001", "metrics": "8002", "control": "8003"}
CHECKPOINT = "hub/checkpoints/resnet152-f82ba261.pth"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that git has or would take, and of what was made of them only what was exported."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    folder = tmp_path / "repository"
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    # By fingerprint: the same code, of the same locked packages. CACHE_DIR would be the workers' too, for measurements.
    (folder / "model_store" / ".exports").symlink_to(shared())
    return folder


@pytest.fixture
def ports(copy: Path) -> Ports:
    free = Ports.free()
    path = copy / "config.properties"
    path.write_text(config_for(path.read_text(), free, copy, copy / "model_store"))
    return free


@pytest.fixture
def gateway_ports(copy: Path) -> dict[str, int]:
    """Of the copy's gateway, whose settings are all at their defaults otherwise."""
    free = dict(zip(GATEWAY, free_ports(len(GATEWAY)), strict=True))
    path = copy / "deploy" / "gateway.yaml"
    path.write_text(f"{path.read_text()}\nports: {free}\n")
    return free


@pytest.fixture
def environment(copy: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A new user's: nothing of this process's Python, folders of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "JAVA_HOME", "LOG_LOCATION", "METRICS_LOCATION", "MAKEFLAGS", "MAKELEVEL")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    kept["PATH"] = os.pathsep.join(p for p in kept["PATH"].split(os.pathsep) if not p.startswith(str(ROOT)))
    own = {**kept, "TMPDIR": str(temporary), "TEMP": str(temporary), "TORCH_HOME": str(tmp_path / "torch")}
    yield own
    subprocess.run(["make", "stop"], cwd=copy, env=own, check=False)


def has_network() -> bool:
    try:
        socket.create_connection(("download.pytorch.org", 443), timeout=5).close()
    except OSError:
        return False
    return True


# An environment and four servers while other modules run beside it: some five minutes, and this on a slow machine.
@pytest.mark.timeout(1800)
def test_readme_shell_blocks_run_as_written(
    copy: Path, ports: Ports, gateway_ports: dict[str, int], environment: dict[str, str], tmp_path: Path
) -> None:
    commands = [block for page in RUN_PAGES for block in blocks(page)]
    assert len(commands) == 15
    own = {INFERENCE: ports.inference, MANAGEMENT: ports.management, METRICS: ports.metrics}
    own |= {port: gateway_ports[name] for name, port in GATEWAY.items()}
    outputs = []
    # Blocks share their reader's shell, from the README on: its activated environment and its variables.
    shell = ""

    def run(script: str) -> str:
        # Into a file: a server started in the background keeps a pipe open, and its reader waiting.
        with (tmp_path / "output").open("w+") as output:
            finished = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=600,
            )
            output.seek(0)
            printed = output.read()
        assert finished.returncode == 0, f"{script}\n{printed}"
        return printed

    for block in commands:
        if "./archive.sh resnet-152" in block and not has_network():
            # The published weights' stand-in, where torch.hub would have left them.
            (tmp_path / "torch" / CHECKPOINT).parent.mkdir(parents=True, exist_ok=True)
            entry = model("resnet-152")
            torch.save(load(entry, "resnet152", source(entry, "random")), tmp_path / "torch" / CHECKPOINT)
        text = re.sub("|".join(own), lambda match: str(own[match[0]]), block)
        outputs.append(run(shell + text))
        if block == "make serve\n":
            again = run(block)
            assert again.count("up to date") == again.count("already served") >= 1
            assert "already running" in again
        shell += "".join(f"{line}\n" for line in text.splitlines() if re.match(r"(source |\w+=)", line))

    # README.md, docs/adaptive.md, docs/operations.md.
    served, stopped, by_hand, requests, texts, clients, gateway, added, own_model, custom, *rest = outputs
    helped, adaptive, metrics, loaded, ended = rest
    assert '"Egyptian cat": 0.' in served
    assert "TorchServe: stopped" in stopped
    assert "registered with 1 initial workers" in by_hand
    assert '"batchSize": 32' in by_hand
    assert requests.count("{") == 3 + 3
    assert '{"predictions":[{"' in requests
    assert '[{"label":"ko","score":' in texts
    assert texts.count('"predictions":[[') == 1
    assert "2 answered, 0 failed" in clients
    assert "version 1.0 is unregistered" in clients
    assert f"http://127.0.0.1:{gateway_ports['http']}" in gateway
    assert '{"name": "sentence-embedding", "versions": ["1.0"]' in gateway
    assert '"outputs":[{"name":"output__0","datatype":"FP32","shape":[2,384],"data":[' in gateway
    # ResNet-152, whatever its weights: five labels.
    assert len(json.loads(gateway.splitlines()[-1])) == 5
    assert '{"espresso":0.9' in added
    assert "image FP32 [-1, 1, 28, 28] -> probabilities FP32 [-1, 10]" in own_model
    assert '{"predictions":[[' in own_model
    assert custom.count('["navy"]') == 1
    assert '{"predictions":[["chocolate","brown"],["navy","indigo"]]}' in custom
    assert "serve" in helped
    assert re.search(r"\[-?0\.\d+,-?0\.\d+,", adaptive)
    assert 'handler_batch_size_count{ModelName="resnet-152"' in metrics
    assert "8 clients" in loaded
    assert "TorchServe has stopped" in ended
