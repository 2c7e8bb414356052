"""The command `python -m deploy.serve NAME.mar`: one archive in one process.

ports bound -> archive loaded -> HTTP, and gRPC -> SIGTERM: not ready -> idle or late -> the end
"""

import socket
import sys
from pathlib import Path
from typing import Any

from deploy.command import CommandParser, run_command
from deploy.serve.process import NotServed, Process


def main() -> int:
    """Serve the archive of the command line."""
    parser = CommandParser(
        prog="python -m deploy.serve",
        description="Serve one archive in this process, without TorchServe and Java.",
        examples=[
            "python -m deploy.serve model_store/language-id.mar",
            "python -m deploy.serve M.mar --grpc-port 8001 --threads 2",
        ],
    )
    parser.add_argument("archive", type=Path, help="NAME.mar, which ./archive.sh builds")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1 by default")
    parser.add_argument("--port", type=int, default=8080, help="port of HTTP; 8080 by default")
    parser.add_argument("--grpc-port", type=int, help="port of the Open Inference Protocol's gRPC; off by default")
    parser.add_argument("--threads", type=int, default=0, help="processor threads; the archive's own by default")
    parser.add_argument("--gpu", type=int, help="number of the GPU; the processor by default")
    parser.add_argument("--config", type=Path, help="YAML of limits: docs/how-to/one-process.md")
    options, process = parser.parse_args(), Process()
    process.end(run_command("serve", lambda: _serve(options, process), NotServed))


def _serve(options: Any, process: Process) -> None:
    from deploy.serve.limits import read_limits  # noqa: PLC0415

    try:
        limits = read_limits(options.config)
    except (OSError, ValueError) as error:
        raise NotServed(f"--config: {error}") from None
    if not options.archive.exists():
        raise NotServed(f"no archive {options.archive}; ./archive.sh builds archives")
    listener = _bind(options.host, options.port)
    if options.grpc_port is not None:
        # gRPC binds it itself, after minutes perhaps.
        _bind(options.host, options.grpc_port, "--grpc-port").close()
    from deploy.serve.server import load, run  # noqa: PLC0415

    try:
        host = load(options, limits)
    except ModuleNotFoundError as error:
        environment = "the environment of requirements.lock, or of the archive's own packages"
        raise NotServed(f"{options.archive.name} needs the package {error.name}: use {environment}") from None
    except Exception as error:
        raise NotServed(f"{options.archive.name} does not load: {type(error).__name__}: {error}") from None
    run(host, listener, options, limits, process)


def _bind(host: str, port: int, option: str = "--port") -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: a response is two writes, and the second would wait 40 ms for the client's receipt.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        raise NotServed(f"cannot listen on {host}:{port}: {error}; set {option} to a free port") from None
    return listener


if __name__ == "__main__":
    sys.exit(main())
