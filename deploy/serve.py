"""`make serve` and `make stop`: archive, start, register, and print one prediction.

    config.properties             -> archives built -> server started -> registered -> one prediction
    config.production.properties  -> archives there -> server started -> READY      -> how to call it

Where the published ResNet-152 weights cannot be fetched, resnet-152 is served untrained and says so, and a trained
mobilenet-v2 beside it gives the prediction.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import requests

from deploy import production
from deploy.archive import Archive, ArchiverFailed, Recipe, cache_of, report
from deploy.memory import Served, too_little
from deploy.models import ROOT, model
from deploy.server import Server, ServerError
from deploy.sources import WeightsUnavailable
from deploy.waits import Waits
from handlers.errors import InvalidConfig
from torchserve_client.archives import original_version
from torchserve_client.management import ManagementError

MAIN, STAND_IN = "resnet-152", "mobilenet-v2"
PHOTOGRAPH = ROOT / "examples" / MAIN / "cat.jpg"
# What prints the key, where it must not be printed itself.
KEY = '$(.venv/bin/python -c \'import json; print(json.load(open("key_file.json"))["inference"]["key"])\')'
# Seconds between two looks at a server that is supervised.
SUPERVISE_S = 1.0
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


def start(config: Path, *, is_logged: bool = False) -> None:
    """Bring everything from nothing to a prediction; what is there already is used as it is.

    Args:
        config: the server's config.properties.
        is_logged: whether what is printed ends in a log, where no key may be.

    Raises:
        ServerError: something is not as it should be. What this call has started is stopped again where the
            configuration names its models; where they are registered, what is served so far is served on.
    """
    server = Server(config)
    running = server.config_of_running()
    if running not in (None, config.resolve()):
        raise ServerError(f"a TorchServe runs with {running}, process {server.pid()}: make stop ends it")
    if server.settings.has_model_api:
        start_development(server)
    else:
        start_production(server, is_logged=is_logged)


def start_development(server: Server) -> None:
    """Build archives, start the server, register them, and print a prediction."""
    built = archives(cache_of(os.environ))
    with Waits() as waits:
        run_server(server, waits)
        register(server, built, waits)
    described = [server.management.describe(name) for name in server.management.models()]
    problem = too_little(server.settings, [Served.described(model) for model in described])
    if problem is not None:
        banner(f"{server.config.name}: {problem}")
    predict(server, list(built)[-1])


def start_production(server: Server, *, is_logged: bool) -> None:
    """Start a server whose configuration names its models, prove that all are READY, and print how to call them."""
    models = production.named(server.settings, server.directory / server.settings.model_store)
    printed = production.logs(server, models)
    is_new = server.pid() is None
    try:
        with Waits() as waits:
            run_server(server, waits)
            with waits.on(f"{', '.join(model.name for model in models)}: waiting for workers"):
                production.prove(server, models, printed)
        key = server.key("inference")
        if server.settings.has_tokens and not key:
            raise ServerError(f"{server.keys} has no key: calls need one")
    except BaseException:
        # The server's own death is left as it is, for `main` to tell.
        if is_new:
            server.stop()
        raise
    for each in models:
        print(f"{each.name}: READY, version {each.version}")
    if untrained := [each.name for each in models if each.is_untrained]:
        banner(f"{', '.join(untrained)}: RANDOM weights: the answers mean nothing.")
    for line in production.calls(server, models, KEY if key and is_logged else key):
        print(f"\n$ {line}")


def run_server(server: Server, waits: Waits) -> None:
    """Start the server unless it runs, and say which."""
    if server.pid() is not None:
        server.authorize()
        print(f"TorchServe: already running, process {server.pid()}")
        return
    if (death := server.died()) is not None:
        banner(f"TorchServe: {death}", "It is started anew; what was registered by hand is not.")
        server.forget()
    with waits.on("TorchServe: starting"):
        server.start()
    print(f"TorchServe: started, process {server.pid()}, log in {server.logs.name}/")


def supervise(server: Server) -> None:
    """Wait as long as the server lives; for systemd, Kubernetes and whatever else starts anew what ends.

    Returns once a SIGTERM or Ctrl-C has stopped it.

    Raises:
        ServerError: it has died.
    """
    is_told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_told.set())
    while not is_told.wait(SUPERVISE_S):
        if server.pid() is None:
            break
    if is_told.is_set():
        server.stop()
    elif (death := server.died()) is not None:
        server.forget()
        raise ServerError(f"TorchServe: {death}")


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


def config_of(text: str) -> Path:
    """Find a configuration by the name that `make serve CONFIG=` gives, or by its path.

    Raises:
        ServerError: there is none.
    """
    for path in (ROOT / f"config.{text}.properties", Path(text)):
        if path.is_file():
            return path
    names = sorted(path.name.split(".")[1] for path in ROOT.glob("config.*.properties"))
    raise ServerError(f"no configuration {text}: CONFIG is a path, or one of {', '.join(names)}")


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.serve", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["start", "run", "stop"], help="run stays until the server ends")
    parser.add_argument("--config", default=str(ROOT / "config.properties"), metavar="NAME|PATH")
    options = parser.parse_args(arguments)
    server = None
    try:
        config = config_of(options.config)
        server = Server(config)
        if options.command == "stop":
            stop(server)
        else:
            start(config, is_logged=options.command == "run")
            if options.command == "run":
                supervise(server)
    except (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError) as error:
        death = server.died() if server is not None else None
        print(
            f"serve: {error}" + (f"; TorchServe: {death}" if death and death not in str(error) else ""), file=sys.stderr
        )
        return 1
    return 0


def stop(server: Server) -> None:
    """End the server; say so where it has ended by itself."""
    if server.stop():
        print("TorchServe: stopped")
    elif (death := server.died()) is not None:
        server.forget()
        print(f"TorchServe: not running, {death}")
    else:
        print("TorchServe: not running")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
