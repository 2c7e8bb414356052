"""A door, and a client that plays a row there and sees what it must see."""

import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import grpc
import psutil
import pytest
import requests
from tritonclient.grpc import service_pb2

from tests.doors.http2 import INFER, Connection, connect
from tests.doors.kinds import PATH, Asks, Calls, Frames, Holds, Row, Talk, Together, asking, post
from tests.doors.lacks import is_endless, why_lacking

MODEL = "double"
FULL = "no worker (to serve inference|can take the) request|The model's queue is full"  # what they then say
LAST = 50  # the number of a request behind a row's: it is answered next, so nothing else was
GAP_S = 0.005  # seconds between the two packets of a split
THREADS = 4  # that send splits at once: more of them hold each other up where the machine is busy
STEP = 50  # connections that are opened between two answers: the longest silent one, which ends, is none of the others
HOLD_S = 3.0  # seconds for which calls and connections are held open
OTHER_S = 15.0  # seconds in which others are answered meanwhile; some of them stay below one
PATIENCE_S = 150.0  # seconds for what a door ends by itself
MIB = 1 << 20


@dataclass(frozen=True)
class Door:
    name: str
    url: str  # of HTTP
    pids: tuple[int, ...]  # of the processes whose memory is bounded
    rpc: str = ""  # HOST:PORT of gRPC
    ca: str | None = None  # the file of its certificate's authority
    most_mib: int | None = None  # by which these processes may grow in each row that bounds memory, if not the row's
    queue: int | None = None  # requests that wait for a model; a full queue rejects those of all clients with 503
    is_pipelined: bool = True  # whether it may get a request before it has answered the one before it

    def connect(self) -> socket.socket:
        found = socket.create_connection(address(self.url.partition("//")[2]), timeout=PATIENCE_S)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.ca is None:
            return found  # at once: a hundred contexts take longer than a silent connection may last
        return ssl.create_default_context(cafile=self.ca).wrap_socket(found, server_hostname="127.0.0.1")

    def channel(self, **named: object) -> grpc.Channel:
        """Return a channel of its own connection."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        if not self.ca:
            return grpc.insecure_channel(self.rpc, options, **named)
        return grpc.secure_channel(self.rpc, grpc.ssl_channel_credentials(Path(self.ca).read_bytes()), options, **named)


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def hold(row: Row, door: Door) -> None:
    """Play a row, or fail it if the door is known to lack it."""
    if (why := why_lacking(row, door.name)) and is_endless(row):
        pytest.skip(why)
    elif why:
        with pytest.raises(AssertionError):
            play(row, door)
    else:
        play(row, door)


def play(row: Row, door: Door) -> None:
    """Assert that each client of the row sees what it must, others are served meanwhile and later, and what that costs.

    A queue that the row fills rejects others as well.
    """
    with _bounded(row, door), _others(door, is_filled(row, door)):
        PLAYS[type(row)](row, door)
    ask(door)


def is_filled(row: Row, door: Door) -> bool:
    """Return whether a row may fill a model's queue."""
    return door.queue is not None and getattr(row, "connections", 1) > door.queue and not getattr(row, "waits", False)


def _play_talk(row: Talk, door: Door) -> None:
    splits = [(row.sends[:at], row.sends[at:]) for at in range(1, len(row.sends) if row.is_split else 1)]
    sent = [(row.sends,)] * row.connections + splits
    with ThreadPoolExecutor(max(THREADS, row.connections)) as pool:
        seen = [*pool.map(lambda packets: _talk(packets, row, door), sent)]
    wrong = [each for each in zip(seen, sent, strict=True) if not _is_kept(each[0], row, is_filled(row, door))]
    assert wrong == [], f"{len(wrong)} of {len(sent)}: {wrong[0][0]!r:.500} to {wrong[0][1]!r:.500}"


def _talk(packets: tuple[bytes, ...], row: Talk, door: Door) -> list[tuple[str, bytes]]:
    """Send packets, and a request behind them; return the statuses that come, with their bodies."""
    answers = list[tuple[str, bytes]]()
    with door.connect() as connection, connection.makefile("rb") as file:
        with suppress(OSError):  # the server may end it before it has read all
            for packet in packets:
                connection.sendall(packet)
                time.sleep(GAP_S if row.is_split else 0)
            if not door.is_pipelined:
                select.select([connection], [], [], OTHER_S)
            connection.sendall(b"" if row.waits else post(LAST))
        with suppress(ConnectionError, ssl.SSLError):
            while answers[-1:] != [("200", _answer(LAST))]:
                answers.append(read_answer(file))
                if answers[-1][0] == "end" or (is_filled(row, door) and len(answers) == 2):
                    break
    return answers or [("end", b"")]


def read_answer(file: BufferedReader) -> tuple[str, bytes]:
    if (start := file.read(7)) != b"HTTP/1.":
        return "end", b""
    line = start + file.readline()
    lines = [*iter(file.readline, b"\r\n")]
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(b":") for each in lines)}
    if (status := line.split()[1].decode()).startswith("1"):
        return read_answer(file)
    if headers.get(b"transfer-encoding") != b"chunked":
        return status, file.read(int(headers.get(b"content-length", b"0")))
    body = b""
    while size := int(file.readline(), 16):
        body += file.read(size + 2)[:-2]
    file.readline()
    return status, body


def _answer(number: int) -> bytes:
    return b'{"y":%d}' % (2 * number)


def _is_kept(seen: list[tuple[str, bytes]], row: Talk, is_filled: bool) -> bool:
    """Return whether statuses are the row's, and each answer with 200 that of its own request."""
    found = ["last" if each == ("200", _answer(LAST)) else each[0] for each in seen]
    # A reset ends a connection, too.
    found += [] if found[-1] in ("last", "end") or (is_filled and found[1:] == ["503"]) else ["end"]
    wanted = "".join(f"(({each.rstrip('?')}) ){'?' * each.endswith('?')}" for each in row.sees.split())
    ends = "end" if row.waits else row.ends.replace(" ", "|")
    # The last request may find the queue full, too; TorchServe ends a connection that it has rejected.
    ends += "|503|(?<=503 )end" if is_filled else ""
    bodies = [body for status, body in seen if status == "200"]
    is_own = not row.answers or bodies[: len(row.answers)] == [*map(_answer, row.answers)]
    return is_own and re.fullmatch(f"{wanted}({ends})", " ".join(found)) is not None


def _play_together(row: Together, door: Door) -> None:
    with ThreadPoolExecutor(len(row.talks)) as pool:
        assert [*pool.map(lambda each: _play_talk(each, door), row.talks)]


def _play_holds(row: Holds, door: Door) -> None:
    """Hold connections that have sent something; the door may end some."""
    with ExitStack() as stack:
        held = list[socket.socket]()
        for number in range(row.connections):
            if number % STEP == 0:
                ask(door)
            held.append(stack.enter_context(door.connect()))
        for each in held:
            with suppress(ConnectionError):
                each.sendall(row.sends)
        time.sleep(HOLD_S)
        ask(door)


def _play_calls(row: Calls, door: Door) -> None:
    with ExitStack() as stack:
        connections = [Connection(address(door.rpc), row.calls, row.message) for _ in range(row.connections)]
        for each in connections:
            stack.enter_context(each.socket)
        ends_s = time.monotonic() + HOLD_S
        while time.monotonic() < ends_s:
            for each in connections:
                each.step()
            time.sleep(0.001)
        ask_grpc(door)


def _play_frames(row: Frames, door: Door) -> None:
    """Send frames until all are sent, or the door ends the connection or reads no more."""
    with connect(address(door.rpc)) as connection:
        reading = threading.Thread(target=_drain, args=(connection,))
        reading.start()
        with suppress(OSError):
            connection.sendall(row.frames)
        ask_grpc(door)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        reading.join()


def _drain(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass


def _play_asks(row: Asks, door: Door) -> None:
    compression = grpc.Compression.Gzip if row.is_packed else grpc.Compression.NoCompression
    with door.channel(compression=compression) as channel:
        try:
            channel.unary_unary(row.method)(row.message, metadata=row.metadata, timeout=PATIENCE_S)
            code = "OK"
        except grpc.RpcError as error:
            code = error.code().name
    assert re.fullmatch(row.sees, code), code
    ask_grpc(door)


PLAYS: dict[type[Row], Callable[..., None]] = {
    **{Talk: _play_talk, Together: _play_together, Holds: _play_holds},
    **{Calls: _play_calls, Frames: _play_frames, Asks: _play_asks},
}


def ask(door: Door) -> None:
    """Assert that a client is answered by HTTP."""
    answer = requests.post(door.url + PATH.decode(), json={"x": 21}, timeout=OTHER_S, verify=door.ca)
    assert (answer.status_code, answer.text) == (200, '{"y":42}'), answer.text


def ask_grpc(door: Door) -> None:
    """Assert that a client is answered by gRPC, and that its health is."""
    with door.channel() as channel:
        assert channel.unary_unary(HEALTH.get(door.name, CHECK))(b"", timeout=OTHER_S) == b"\x08\x01"
        answer = channel.unary_unary(INFER.decode())(asking(21), timeout=OTHER_S)
    assert service_pb2.ModelInferResponse.FromString(answer).raw_output_contents == [(42).to_bytes(8, "little")]


CHECK = "/grpc.health.v1.Health/Check"
HEALTH = {"Ray Serve": "/inference.GRPCInferenceService/ServerReady"}


@contextmanager
def _others(door: Door, may_reject: bool) -> Iterator[None]:
    """Ask as other clients do, again and again while the block runs; each must be answered."""
    failures, is_over = list[BaseException](), threading.Event()

    def run(ask_once: Callable[[Door], None]) -> None:
        while not (failures or is_over.wait(0.1)):
            try:
                ask_once(door)
            except BaseException as error:
                if not (may_reject and re.search(FULL, str(error))):
                    failures.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in (ask, *([ask_grpc] if door.rpc else []))]
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
    """Assert that the door's processes grow by no more than the row's memory."""
    processes, is_over = [*map(psutil.Process, door.pids)], threading.Event()

    def size() -> int:
        return sum(process.memory_info().rss for process in processes)

    before = most = size()

    def watch() -> None:
        nonlocal most
        while not is_over.wait(0.02):
            most = max(most, size())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    grown_mib = (most - before) // MIB
    assert row.memory_mib is None or grown_mib <= (door.most_mib or row.memory_mib), f"{grown_mib} MiB"


def is_kept_by(door: Door, ask_once: Callable[[Door], None]) -> bool:
    """Return whether a door that has started answers."""
    with suppress(AssertionError, requests.RequestException, grpc.RpcError):
        ask_once(door)
        return True
    return False
