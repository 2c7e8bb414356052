"""The command `torchserve-batching serve NAME.mar`: archives in one process, or in several behind one port.

ports bound -> archive loaded -> HTTP, and gRPC -> SIGTERM: not ready -> idle or late -> the end
"""

import argparse
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.command import CommandParser, number, run_command
from deploy.hosts.serve.doors import Given, Member, Port
from deploy.hosts.serve.process import NotServed, Process
from deploy.places import ARCHIVE, HOME, OWN_LIST, PLACE, ROOT, STORE


def main(arguments: list[str] | None = None) -> int:
    parser = CommandParser(
        prog="torchserve-batching serve",
        description="Serve archives in this process, without TorchServe and Java.",
        examples=[
            "torchserve-batching serve model_store/language-id.mar",
            "torchserve-batching serve language-id.mar reranker.mar --processes auto",
        ],
    )
    words = "files NAME.mar, or a NAME of models.yaml, which is built first; the list's first model by default"
    parser.add_argument("archives", nargs="*", default=[""], metavar="archive", help=words)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1 by default")
    port = number(int, 0, 65535)
    parser.add_argument("--port", type=port, default=8080, help="port of HTTP; 8080 by default")
    parser.add_argument("--grpc-port", type=port, help="port of the Open Inference Protocol's gRPC; off by default")
    parser.add_argument("--threads", type=int, default=0, help="processor threads; the archive's own by default")
    parser.add_argument(
        "--processes", type=_count, help="processes that share the ports, or `auto`; SIGHUP replaces them one by one"
    )
    words = "folder of archives NAME.mar, each loaded at its first request"
    parser.add_argument("--store", type=Path, metavar="FOLDER", help=words)
    words = "memory above which --store unloads idle models; no limit by default"
    parser.add_argument("--most-memory", type=_bytes, metavar="8GiB", help=words)
    parser.add_argument("--gpu", type=int, help="number of the GPU; the processor by default")
    parser.add_argument("--config", type=Path, help="YAML of limits: docs/how-to/one-process.md")
    parser.add_argument("--access-log", type=Path, metavar="FILE", help="append a JSON line for each request")
    options = parser.parse_intermixed_args(arguments)
    # A build runs before this process takes the signals.
    if code := run_command("serve", lambda: _find_archives(options), NotServed):
        return code
    if (member := Member.of_environment()) and member.cores:
        os.sched_setaffinity(0, member.cores)
    options.member, process = member, Process()
    serve = _serve if options.processes is None else _supervise
    return process.end(run_command("serve", lambda: serve(options, process), NotServed))


def _count(text: str) -> int:
    """Read a number of processes; 0 for `auto`."""
    count: int = 0 if text == "auto" else number(int, 1, 1024)(text)
    return count


def _bytes(text: str) -> int:
    """Read a number of bytes, such as 512MiB."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B?|B?)", text, re.IGNORECASE)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8GiB")
    return int(float(found[1]) * 1024 ** " KMGT".find(found[2][:1].upper().strip("B") or " "))


def _find_archives(options: Any) -> None:
    if options.store is None:
        if options.most_memory is not None:
            raise NotServed("--most-memory needs --store FOLDER")
        options.archives = [*map(_find_archive, options.archives)]
        return
    if options.archives != [""]:
        raise NotServed("either archives or --store FOLDER, which has them")
    if options.processes is not None:
        raise NotServed("--store serves in one process; leave --processes out")
    if not options.store.is_dir():
        raise NotServed(f"no folder {options.store}")
    options.archives = []


def _read_limits(path: Path | None) -> Any:
    from deploy.hosts.serve.limits import HostLimits  # noqa: PLC0415
    from deploy.settings_file import read_settings, read_yaml  # noqa: PLC0415

    try:
        return read_settings(HostLimits, path, read_yaml(path) or {}) if path else HostLimits()
    except (OSError, ValueError) as error:
        raise NotServed(f"--config: {error}") from None


def _supervise(options: Any, process: Process) -> None:
    import uvloop  # noqa: PLC0415

    from deploy.hosts.serve.server import print_summary  # noqa: PLC0415
    from deploy.hosts.serve.supervisor import Supervisor  # noqa: PLC0415

    limits = _read_limits(options.config)
    http = _bind(options.host, options.port)
    grpc = None if options.grpc_port is None else _bind(options.host, options.grpc_port, "--grpc-port")
    given = {"--threads": options.threads or None, "--gpu": options.gpu, "--config": options.config}
    given["--access-log"] = options.access_log and options.access_log.absolute()
    given["--grpc-port"] = None if grpc is None else 0
    words = [str(each.resolve()) for each in options.archives]
    words += [text for name, value in given.items() if value is not None for text in (name, str(value))]
    supervisor = Supervisor(words, options.processes or None, limits, process)

    def on_ready(rows: dict[str, str]) -> None:
        print_summary(rows, options.host, http.getsockname()[1])

    if code := uvloop.run(supervisor.run(http, grpc, on_ready)):
        process.end(code)  # the process that has failed has written why


def _serve(options: Any, process: Process) -> None:
    from deploy.hosts.serve.server import load, run  # noqa: PLC0415
    from deploy.loader import NotTogether, OtherFormat, build_of  # noqa: PLC0415

    limits, member, log = _read_limits(options.config), options.member, _open_log(options.access_log)
    door = Given(member) if member else Port(_bind(options.host, options.port))
    if options.grpc_port is not None and member is None:
        _bind(options.host, options.grpc_port, "--grpc-port").close()  # gRPC binds it itself, after minutes perhaps
    # An archive is unpacked for each process, and the next one must know its measurements and crashes.
    with suppress(RuntimeError):
        os.environ.setdefault("CACHE_DIR", str(Path.home() / ".cache" / "torchserve-batching"))
    try:
        host = load(options, limits, member)
    except (NotTogether, OtherFormat) as error:
        raise NotServed(str(error)) from None
    except ModuleNotFoundError as error:
        needs = ", ".join(build_of(options.archive).get("requirements", ()))
        extra = "torchserve" if error.name in ("ts", "torch_model_archiver") else "build"
        fix = f"install its requirements: {needs}" if needs else f"pip install 'torchserve-batching[{extra}]'"
        raise NotServed(f"{options.archive.name} needs the package {error.name}: {fix}") from None
    except Exception as error:
        raise NotServed(f"{options.archive.name} does not load: {type(error).__name__}: {error}") from None
    host.log = _trace(limits.traces, log, host)
    run(host, door, options, limits, process)


def _open_log(path: Path | None) -> Any:
    from deploy.hosts.serve.access_log import AccessLog  # noqa: PLC0415

    try:
        return AccessLog(path) if path else None
    except OSError as error:
        raise NotServed(f"--access-log: {error}") from None


def _trace(url: str | None, log: Any, host: Any) -> Any:
    """Return what notes the requests: the access log, and behind it the spans."""
    if url is None:
        return log
    try:
        from deploy.hosts.serve.traces import Traces  # noqa: PLC0415
    except ModuleNotFoundError as error:
        words = f"traces needs the package {error.name}: pip install 'torchserve-batching[traces]'"
        raise NotServed(words) from None
    traces = Traces(url, log)
    host.on_close = traces.close
    return traces


def _find_archive(text: str) -> Path:
    """Return the path of an archive; a model of the user's list is built in another process."""
    path = Path(text)
    if path.name != text or text.endswith((".mar", ".gz")) or (path / "MAR-INF").is_dir():
        if not path.exists():
            raise NotServed(f"no archive {path}; {ARCHIVE} builds archives")
        return path
    if not OWN_LIST.is_file():
        raise NotServed(f"no models.yaml in {HOME}; name an archive, or write a project: torchserve-batching init DIR")
    import yaml  # noqa: PLC0415

    listed = yaml.safe_load(OWN_LIST.read_text(encoding="utf-8"))
    name = text or next(iter(listed), "") if isinstance(listed, dict) else ""
    command = [sys.executable, "-m", "torchserve_batching", "archive", name or "--all", "--recall"]
    environment = {**os.environ, PLACE: str(HOME), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT.parent}"}
    if subprocess.run(command, env=environment, check=False).returncode:
        raise NotServed(f"{name or OWN_LIST.name} is not built")
    return STORE / f"{name}.mar"


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
