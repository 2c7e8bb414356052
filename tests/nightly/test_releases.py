"""An archive of the release before, built by its own code: who serves it, and who refuses it in a line that is true."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import requests

from deploy.hosts.ray.settings import read
from deploy.models import ROOT
from handlers.errors import InvalidConfig
from load.sandbox import run_server
from tests.hosts import command
from torchserve_client.version import VERSION

BEFORE, COMMIT = "0.3.0", "5a43f4ea"  # the last commit of that release
BUILD = """
import sys
from pathlib import Path
sys.path[:0] = [".", "client"]
from deploy.archives.archive import Recipe
from deploy.models import model
Recipe(model("language-id"), export_path=Path(sys.argv[1])).build()
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"a clone without commit {COMMIT}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder / "source", filter="data")
    words = [sys.executable, "-W", "ignore", "-c", BUILD, str(folder / "store")]
    subprocess.run(words, cwd=folder / "source", check=True)
    return folder / "store" / "language-id.mar"


def test_torchserve_serves_an_archive_of_the_release_before(old: Path) -> None:
    with run_server(old.parent) as server:
        server.register("language-id", old.name, batch_size=1, max_batch_delay_ms=1, workers=1)
        url = f"{server.settings.inference_url}/predictions/language-id"
        (best,) = requests.post(url, json={"text": "Il fait beau."}, timeout=60).json()
    assert best["label"] == "fr"


def test_hosts_in_python_refuse_it_in_one_line_with_both_releases(old: Path, tmp_path: Path) -> None:
    words = f"language-id.mar has format 2, of torchserve-batching {BEFORE}, and this is {VERSION} with format"
    run = subprocess.run(command(old, "--port", 0), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, len(run.stderr.splitlines())) == (1, "", 1) and words in run.stderr
    (tmp_path / "models.yaml").write_text(f"models: [{{archive: {old}}}]\n")
    with pytest.raises(InvalidConfig, match=words):
        read(tmp_path / "models.yaml")
