"""A door, and a client that plays a row there and sees what it must see."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader

import grpc
import psutil
import requests
from tritonclient.grpc import service_pb2

from tests.doors.http2 import Connection
from tests.doors.rows import PATH, Row, post
from tests.waiting import PATIENCE_S

LAST = 50  # the number of a request behind a row's: it is answered next, so nothing else was
GAP_S = 0.005  # seconds between the two packets of a split
HOLD_S = 3.0  # seconds for which calls are held open
OTHER_S = 15.0  # seconds in which others are answered meanwhile; some of them stay below one
MIB = 1 << 20


@dataclass(frozen=True)
class Door:
    name: str
    http: str  # HOST:PORT
    path: str  # of predictions
    pid: int  # of the process whose memory is bounded
    grpc: str = ""
    model: str = "double"

    def address(self, text: str) -> tuple[str, int]:
        host, _, port = text.rpartition(":")
        return host, int(port)


def play(row: Row, door: Door) -> None:
    """Assert that each client of the row sees what it must, that others are served meanwhile, and what that costs."""
    with _bounded(row, door), _others(door):
        if row.calls:
            _hold_calls(row, door)
        else:
            path = door.path.encode()
            packets = tuple(each.replace(PATH, path) if isinstance(each, bytes) else each for each in row.sends)
            whole = b"".join(each for each in packets if isinstance(each, bytes))
            splits = [(whole[:at], GAP_S, whole[at:]) for at in range(1, len(whole))] if row.is_split else []
            sent = [packets] * row.connections + splits
            with ThreadPoolExecutor(min(len(sent), max(16, row.connections))) as pool:
                seen = [*pool.map(lambda packets: _talk(packets, row, door), sent)]
            wrong = [each for each in zip(sent, seen, strict=True) if not _is_kept(each[1], row)]
            assert wrong == [], wrong[0]


def _talk(packets: tuple[bytes | float, ...], row: Row, door: Door) -> tuple[list[str], list[bytes]]:
    """Send packets; return the statuses that come, and the bodies of those with 200."""
    is_ended = "end" in row.sees
    behind = () if is_ended else (post(LAST).replace(PATH, door.path.encode()),)
    with socket.create_connection(door.address(door.http), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the server may end it before it has read all
            for packet in (*packets, *behind):
                if isinstance(packet, bytes):
                    connection.sendall(packet)
                else:
                    time.sleep(packet)
        statuses, bodies = list[str](), list[bytes]()
        file = connection.makefile("rb")
        with suppress(ConnectionError):
            while len(statuses) < len(row.sees) + (not is_ended):
                status, body = _read_answer(file)
                statuses.append(status)
                bodies += [body] if status == "200" else []
                if status == "end":
                    break
    return statuses, bodies


def _read_answer(file: BufferedReader) -> tuple[str, bytes]:
    if not (line := file.readline()):
        return "end", b""
    lines = [*iter(file.readline, b"\r\n")]
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines)}
    if (status := line.split()[1].decode()).startswith("1"):
        return _read_answer(file)
    if headers.get(b"transfer-encoding") != b"chunked":
        return status, file.read(int(headers.get(b"content-length", b"0")))
    body = b""
    while size := int(file.readline(), 16):
        body += file.read(size + 2)[:-2]
    file.readline()
    return status, body


def _is_kept(seen: tuple[list[str], list[bytes]], row: Row) -> bool:
    statuses, bodies = seen
    is_ended = "end" in row.sees
    expected = [*row.sees, *([] if is_ended else ["200"])]
    doubled = [b'{"y":%d}' % each for each in (*row.answers, *([] if is_ended else [2 * LAST]))]
    # A reset ends a connection, too.
    statuses = [*statuses, "end"] if is_ended and "end" not in statuses else statuses
    is_seen = len(statuses) == len(expected) and all(
        status in wanted.split("|") for status, wanted in zip(statuses, expected, strict=True)
    )
    return is_seen and (not row.answers or bodies == doubled) and bodies[-1:] == doubled[-1:]


def _hold_calls(row: Row, door: Door) -> None:
    connections = [Connection(door.address(door.grpc), row.calls, row.message) for _ in range(row.connections)]
    try:
        ends_s = time.monotonic() + HOLD_S
        while time.monotonic() < ends_s:
            for each in connections:
                each.step()
            time.sleep(0.001)
        ask_grpc(door)
    finally:
        for each in connections:
            each.socket.close()


def ask(door: Door) -> None:
    """Assert that a client is answered by HTTP."""
    answer = requests.post(f"http://{door.http}{door.path}", json={"x": 21}, timeout=OTHER_S)
    assert (answer.status_code, answer.text) == (200, '{"y":42}'), answer.text


def ask_grpc(door: Door) -> None:
    """Assert that a client is answered by gRPC, and that its health is."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents[:] = [21]
    message = service_pb2.ModelInferRequest(model_name=door.model, inputs=[tensor]).SerializeToString()
    with grpc.insecure_channel(door.grpc) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=OTHER_S) == b"\x08\x01"
        answer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(message, timeout=OTHER_S)
    assert service_pb2.ModelInferResponse.FromString(answer).raw_output_contents == [(42).to_bytes(8, "little")]


@contextmanager
def _others(door: Door) -> Iterator[None]:
    """Ask as other clients do, again and again while the block runs; each must be answered."""
    failures, is_over = list[BaseException](), threading.Event()

    def run(ask_once: Callable[[Door], None]) -> None:
        try:
            while not is_over.wait(0.1):
                ask_once(door)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in (ask, *([ask_grpc] if door.grpc else []))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == [], failures[0]


@contextmanager
def _bounded(row: Row, door: Door) -> Iterator[None]:
    """Assert that the door's process grows by no more than the row's memory."""
    if row.memory_mib is None:
        yield
        return
    process, is_over = psutil.Process(door.pid), threading.Event()
    before = most = process.memory_info().rss

    def watch() -> None:
        nonlocal most
        while not is_over.wait(0.02):
            most = max(most, process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    assert (most - before) // MIB <= row.memory_mib, f"{(most - before) // MIB} MiB"
