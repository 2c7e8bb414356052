"""The command `python -m deploy.serve NAME.mar`: one archive in one process.

the port is bound -> the archive is loaded -> HTTP, and gRPC -> SIGTERM: not ready -> idle or late -> the end
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from deploy.command import CommandParser, run_command
from deploy.places import ARCHIVE, HOME, OWN_LIST, PLACE, ROOT, STORE
from deploy.serve.settings import Limits


class NotServed(Exception):
    """The archive cannot be served; the message is one line."""


def main(arguments: list[str] | None = None) -> int:
    """Serve the archive of the command line."""
    parser = CommandParser(
        prog="torchserve-batching serve",
        description="Serve one archive in this process, without TorchServe and Java.",
        examples=[
            "torchserve-batching serve model_store/language-id.mar",
            "torchserve-batching serve colours --grpc-port 8001 --threads 2",
        ],
    )
    words = "a file NAME.mar, or a NAME of models.yaml, which is built first; the list's first model by default"
    parser.add_argument("archive", nargs="?", default="", help=words)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1 by default")
    parser.add_argument("--port", type=int, default=8080, help="port of HTTP; 8080 by default")
    parser.add_argument("--grpc-port", type=int, help="port of the Open Inference Protocol's gRPC; off by default")
    parser.add_argument("--threads", type=int, default=0, help="processor threads; the archive's own by default")
    parser.add_argument("--gpu", type=int, help="number of the GPU; the processor by default")
    parser.add_argument("--config", type=Path, help="YAML of limits: docs/how-to/one-process.md")
    options = parser.parse_args(arguments)
    return run_command("serve", lambda: _serve(options), NotServed)


def _serve(options: Any) -> None:
    limits = _limits(options.config)
    options.archive = _find_archive(options.archive)
    listener = _bind(options.host, options.port)
    from deploy.ray.replica import Replica  # noqa: PLC0415
    from deploy.serve.metrics import Metrics  # noqa: PLC0415

    logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
    # Its one line about a failure is the command's.
    logging.getLogger("handlers.base").setLevel(logging.CRITICAL)
    metrics = Metrics()
    try:
        replica = Replica(str(options.archive), threads=options.threads, gpu=options.gpu, metrics=metrics)
    except Exception as error:
        raise NotServed(f"{options.archive.name} does not load: {type(error).__name__}: {error}") from None
    # These import `handlers`, which is the archive's own now.
    from deploy.serve.app import Host  # noqa: PLC0415
    from deploy.serve.life import run  # noqa: PLC0415

    host = Host(replica, options.archive, metrics, most_requests=limits.requests)
    _print_summary(host.summary(), options)
    asyncio.run(run(host, listener, options, limits))
    # Threads of an engine may still run.
    sys.stdout.flush()
    os._exit(0)


def _find_archive(text: str) -> Path:
    """Return the path of an archive; a model of the user's list is built in another process."""
    path = Path(text)
    if path.name != text or text.endswith((".mar", ".gz")) or (path / "MAR-INF").is_dir():
        if not path.exists():
            raise NotServed(f"no archive {path}; {ARCHIVE} builds archives")
        return path
    if not OWN_LIST.is_file():
        raise NotServed(f"no models.yaml in {HOME}; name an archive, or write a project: torchserve-batching init DIR")
    listed = yaml.safe_load(OWN_LIST.read_text(encoding="utf-8"))
    name = text or next(iter(listed), "") if isinstance(listed, dict) else ""
    command = [sys.executable, "-m", "torchserve_batching", "archive", name or "--all"]
    environment = {**os.environ, PLACE: str(HOME), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT.parent}"}
    if subprocess.run(command, env=environment, check=False).returncode:
        raise NotServed(f"{name or OWN_LIST.name} is not built")
    return STORE / f"{name}.mar"


def _limits(path: Path | None) -> Limits:
    if path is None:
        return Limits()
    try:
        return TypeAdapter(Limits).validate_python(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError) as error:
        raise NotServed(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise NotServed(f"{path.name}: {wrong}") from None


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise NotServed(f"cannot listen on {host}:{port}: {error.strerror}; set --port to a free one") from None
    return listener


def _print_summary(rows: dict[str, str], options: Any) -> None:
    url = f"http://{options.host}:{options.port}"
    path = f"{url}/predictions/{rows['Model'].partition(' ')[0]}"
    for name, value in {**rows, "URL": path, "Try": f"curl -T FILE {path}", "Stop": f"kill {os.getpid()}"}.items():
        print(f"{name:10} {value}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
