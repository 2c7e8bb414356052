"""Transports without sockets that record requests and send scripted responses."""

import threading
from collections.abc import Callable, Sequence

import orjson

from torchserve_client.client import Client
from torchserve_client.errors import Closed
from torchserve_client.retry import RetryPolicy
from torchserve_client.transport import Request, Response, Transport

Step = Response | Exception


class Fake(Transport):
    """A transport without connections."""

    def __init__(self) -> None:
        """Open nothing."""

    def close(self) -> None:
        """Nothing is open."""


class Script(Fake):
    """Sends its responses in turn, and repeats the last one."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.sent: list[tuple[Request, float]] = []
        self._lock = threading.Lock()

    def send(self, request: Request, timeout_s: float) -> Response:
        with self._lock:
            self.sent.append((request, timeout_s))
            step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self.steps = [Closed("closed")]


class Server(Fake):
    def __init__(self, answer: Callable[[Request], Step]) -> None:
        self.answer = answer
        self.sent: list[Request] = []

    def send(self, request: Request, timeout_s: float) -> Response:
        self.sent.append(request)
        step = self.answer(request)
        if isinstance(step, Exception):
            raise step
        return step


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def client(transport: Script | Server, time: Time | None = None, retry: RetryPolicy | None = None) -> Client:
    time = time or Time()
    return Client(
        "http://server", transport=transport, clock=time.clock, sleep=time.sleep, dice=lambda: 1.0, retry=retry
    )


def ok(value: object) -> Response:
    return Response(200, orjson.dumps(value))


def failed(status: int, type_: str = "", message: str = "", **headers: str) -> Response:
    return Response(status, orjson.dumps({"code": status, "type": type_, "message": message}), headers)


def predictions(*values: object) -> Response:
    return ok({"predictions": list(values)})


def sizes(requests: Sequence[Request]) -> list[int]:
    return [len(orjson.loads(request.body)["instances"]) for request in requests]
