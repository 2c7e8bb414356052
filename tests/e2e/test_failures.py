"""Failures of a worker, an archive or a server: every request gets a response, and one line states the reason."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.properties import relocate_config
from deploy.nodes.run.server import Server
from load.sandbox import make_settings, run_server
from tests.e2e.clients import Clients
from tests.e2e.conftest import ADAPTIVE, MOBILENET, Make, send, url, worker_pid
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.errors import LoadFailed
from torchserve_client.management import Management, ManagementError, NotReady, Unreachable

CLIENTS = 12


@pytest.mark.parametrize("settings", [{}, {"handler": {"scheduling": {"mode": "adaptive"}}, **ADAPTIVE}])
def test_worker_killed_under_load_answers_everybody_it_had_and_comes_back(
    server: Server, serve: Make, variant: Make, settings: dict[str, object]
) -> None:
    """Without a latency target: an adaptive worker rejects no request for lack of time, however slow the processor."""
    name = serve(archive=variant("mobilenet-killed", **settings), name="mobilenet-killed", batch_size=4)
    with Clients(url(server, name), CLIENTS, [photograph("chelsea")]) as clients:
        clients.wait_for(2 * CLIENTS)
        killed = worker_pid(server, name)
        psutil.Process(killed).kill()
        until(lambda: worker_pid(server, name) != killed)
        clients.wait_for(2 * CLIENTS)
    assert clients.lost == []
    # TorchServe's own, for what the worker had (500, or 507 after a kill -9) and for what came while there was none.
    assert set(clients.statuses) <= {200, 500, 503, 507}, clients.statuses
    assert clients.statuses[500] + clients.statuses[507] >= 1
    answer = send(server, name, photograph("chelsea"))
    assert (answer.status, next(iter(answer.body))) == (200, "Egyptian cat")


def test_archives_that_cannot_load_say_why_and_are_unregistered_and_the_others_serve_on(
    server: Server, model_store: Path, serve: Make, variant: Make
) -> None:
    serve()
    reasons = {
        variant("mobilenet-cut"): "the archive's files differ from its build: changed: model.bin; copy it again",
        variant("mobilenet-import"): "No module named 'a_module_nobody_has'",
        variant("mobilenet-silent", startupTimeout=5): "no ready worker after startupTimeout, 5 s",
    }
    os.truncate(model_store / "mobilenet-cut" / "model.bin", 10_000_000)
    for name, first in (("import", "import a_module_nobody_has"), ("silent", "import os; os._exit(3)")):
        module = model_store / f"mobilenet-{name}" / "image_classification.py"
        module.write_text(f"{first}\n{module.read_text()}")

    def failure(name: str) -> str:
        with pytest.raises(LoadFailed) as caught:
            server.register(name, name, batch_size=1, max_batch_delay_ms=1, workers=1)
        return str(caught.value)

    with ThreadPoolExecutor(len(reasons)) as pool:
        for said, expected in zip(pool.map(failure, reasons), reasons.values(), strict=True):
            assert expected in said
    assert server.management.models() == [MOBILENET]
    assert send(server, MOBILENET, photograph("coffee")).status == 200
    # A wait that ends too early names its reason; then the second worker is ready.
    server.management.scale(MOBILENET, 2)
    with pytest.raises(NotReady, match="no ready worker after 0 s"):
        server.management.wait_ready(MOBILENET, 0)
    server.management.wait_ready(MOBILENET, 90)
    assert len(server.management.describe(MOBILENET)["workers"]) == 2


def test_registering_anything_but_an_archive_of_the_store_is_rejected(server: Server) -> None:
    file = f"file://{ROOT}/model_store/mobilenet-v2.mar"
    for archive in ("missing.mar", "../mobilenet-v2.mar", "http://127.0.0.1:9/model.mar", file):
        with pytest.raises(ManagementError) as raised:
            server.management.register(archive, batch_size=1, max_batch_delay_ms=1, initial_workers=1)
        assert raised.value.status == 404


def test_server_that_cannot_start_or_is_not_there_says_so(server: Server, model_store: Path, tmp_path: Path) -> None:
    other = Server(server.config, directory=tmp_path, temporary=tmp_path)
    # gRPC's ports are taken last.
    until(lambda: "grpc_management_port" in str(other.find_obstacle()))
    with pytest.raises(ServerError) as taken:
        other.start()
    for name, (host, port) in server.settings.ports.items():
        assert f"{host}:{port} is taken by another server ({name})" in str(taken.value)
    beside = f"another TorchServe runs on this machine (process {server.pid()}, in {server.directory}): stop it by "
    assert str(taken.value).startswith(beside) and "TMPDIR" not in str(taken.value)
    # With other ports, but in the temporary folder of the first server: its pid file and sockets lie there.
    config = tmp_path / "config.properties"
    config.write_text(relocate_config(server.config.read_text(), ROOT, make_settings(model_store)))
    words = [
        sys.executable,
        "-m",
        "deploy.nodes.run",
        "start",
        "--config",
        str(config),
        "--state-dir",
        f"{tmp_path}/nodes",
    ]
    temporary = {**os.environ, "TMPDIR": str(server.temporary)}
    done = subprocess.run(words, cwd=ROOT, env=temporary, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(f"start: TorchServe: {beside}")
    assert f"export TMPDIR={server.temporary}/torchserve-2`: " in done.stderr
    with pytest.raises(Unreachable, match=r"no TorchServe answers at http://127\.0\.0\.1:9"):
        Management("http://127.0.0.1:9").models()
    config.write_text((ROOT / "config.properties").read_text() + "\nblacklist_env_vars=[\n")
    with pytest.raises(ServerError, match=r"did not start .*console\.log"), run_server(model_store, config):
        pass
