"""`make serve` and `make stop`: archive, start, register, and print one prediction.

Where the published ResNet-152 weights cannot be fetched, resnet-152 is served untrained and says so, and a trained
mobilenet-v2 beside it gives the prediction.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import requests

from deploy.archive import Archive, ArchiverFailed, Recipe, cache_of, report
from deploy.models import ROOT, model
from deploy.server import Server, ServerError
from deploy.sources import WeightsUnavailable
from deploy.waits import Waits
from handlers.errors import InvalidConfig
from torchserve_client.archives import original_version
from torchserve_client.management import ManagementError

MAIN, STAND_IN = "resnet-152", "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MAIN / "cat.jpg"
BATCH_SIZE, MAX_BATCH_DELAY_MS, WORKERS = 8, 50, 1


def archives(cache_path: Path | None) -> dict[str, Archive]:
    """Find or build what is to be served; the one whose answers mean something comes last."""
    trained = Recipe(model(MAIN), cache_path=cache_path)
    untrained = Recipe(model(MAIN), "random", cache_path=cache_path)
    stand_in = Recipe(model(STAND_IN), cache_path=cache_path)
    if untrained.find() is None:
        try:
            return {MAIN: _ready(trained)}
        except WeightsUnavailable as error:
            reason = str(error)
    else:
        # Nothing is fetched twice: `./archive.sh` is the way to try again.
        reason = f"{MAIN}: untrained since its weights could not be fetched; ./archive.sh {MAIN} tries again"
    banner(
        reason,
        f"{MAIN} is served with RANDOM weights: its answers mean nothing.",
        f"{STAND_IN} is served beside it, trained: the prediction below is its own.",
    )
    return {MAIN: _ready(untrained), STAND_IN: _ready(stand_in)}


def _ready(recipe: Recipe) -> Archive:
    started = time.monotonic()
    archive = recipe.find() or recipe.build()
    report(archive, time.monotonic() - started)
    return archive


def banner(*lines: str) -> None:
    """Print on stderr what nobody may miss."""
    print("\n".join(["", "!" * 80, *(f"!!  {line}" for line in lines), "!" * 80, ""]), file=sys.stderr)


def is_served(server: Server, name: str, archive: Archive) -> bool:
    """Whether this very archive is registered and ready; an older one of that name is unregistered."""
    try:
        described = server.management.describe(name)
    except ManagementError as error:
        if error.status != 404:
            raise
        return False
    starts = [datetime.fromisoformat(worker["startTime"]).timestamp() for worker in described["workers"]]
    # A rollout serves copies of the archive under versions of their own.
    version = original_version(str(described["modelVersion"]))
    is_current = version == archive.version and min(starts, default=0) > archive.path.stat().st_mtime
    if is_current and server.management.is_ready(name):
        return True
    server.management.unregister(name)
    return False


def start(config: Path) -> None:
    """Bring everything from nothing to a prediction; what is there already is used as it is."""
    server = Server(config)
    built = archives(cache_of(os.environ))
    with Waits() as waits:
        if server.pid() is None:
            with waits.on("TorchServe: starting"):
                server.start()
            print(f"TorchServe: started, process {server.pid()}, log in {server.logs.name}/")
        else:
            print(f"TorchServe: already running, process {server.pid()}")
        register(server, built, waits)
    predict(server, list(built)[-1])


def register(server: Server, archives: Mapping[str, Archive], waits: Waits) -> None:
    """Serve them all, side by side: a worker's start is seconds of one core.

    Raises:
        LoadFailed, ManagementError: of the first that failed, when all have ended.
    """

    def serve(name: str) -> str:
        archive = archives[name].path.name
        if is_served(server, name, archives[name]):
            return f"{name}: already served"
        with waits.on(f"{name}: waiting for its worker"):
            server.register(
                name, archive, batch_size=BATCH_SIZE, max_batch_delay_ms=MAX_BATCH_DELAY_MS, workers=WORKERS
            )
        return f"{name}: registered, batch_size {BATCH_SIZE}, max_batch_delay {MAX_BATCH_DELAY_MS} ms, {WORKERS} worker"

    with ThreadPoolExecutor(len(archives)) as pool:
        for said in pool.map(serve, archives):
            print(said)


def predict(server: Server, name: str) -> None:
    """Send the photograph and print the answer."""
    url = f"{server.settings.inference_url}/predictions/{name}"
    print(f"\n$ curl -T {PHOTOGRAPH.relative_to(ROOT)} {url}")
    with requests.Session() as session:
        session.trust_env = False
        response = session.put(url, data=PHOTOGRAPH.read_bytes(), timeout=60)
    if response.status_code != 200:
        raise ServerError(f"{name} answered {response.status_code}: {response.text}")
    print(json.dumps(response.json(), indent=2))


def main(arguments: list[str]) -> int:
    """Run `start` or `stop`; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["start", "stop"])
    parser.add_argument("--config", type=Path, default=ROOT / "config.properties")
    options = parser.parse_args(arguments)
    try:
        if options.command == "start":
            start(options.config)
        else:
            print("TorchServe: stopped" if Server(options.config).stop() else "TorchServe: not running")
    except (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
