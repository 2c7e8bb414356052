"""What a TorchServe has in hand, by what it shows of itself, and how long is waited for it."""

from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.run import in_flight
from deploy.run.in_flight import Look, busy_workers, wait_answered
from deploy.run.server import Server
from deploy.sandbox import Ports, config_for


def thread(name: str, *places: str) -> str:
    head = f'"{name}" #21 prio=5 os_prio=0 cpu=15.25ms elapsed=10.20s tid=0x1 nid=0x34ff waiting on condition'
    lines = [head, "   java.lang.Thread.State: TIMED_WAITING (parking)", *(f"\tat {place}" for place in places)]
    return "\n".join(lines) + "\n\n"


RUN = "org.pytorch.serve.wlm.WorkerThread.run(WorkerThread.java:195)"
CLASSIC_IDLE = ("org.pytorch.serve.wlm.Model.pollBatch(Model.java:482)", RUN)
ADAPTIVE_IDLE = ("org.pytorch.serve.wlm.Model.pollInferJob(Model.java:387)", RUN)
BUSY = ("java.util.concurrent.ArrayBlockingQueue.poll(java.base@17.0.9/Unknown Source)", RUN)
# Those that read what a worker prints are named for it too.
READER = ("java.io.FileInputStream.readBytes(java.base@17.0.9/Native Method)",)


def test_workers_that_do_not_wait_for_a_first_request_are_busy() -> None:
    dump = "".join([
        thread("main", "java.lang.Object.wait(java.base@17.0.9/Native Method)"),
        thread("W-9000-m_1.0", *CLASSIC_IDLE), thread("W-9000-m_1.0-stderr", *READER),
        thread("W-9001-adaptive-stdout_1.0", *ADAPTIVE_IDLE), thread("W-9001-adaptive-stdout_1.0-stdout", *READER),
        thread("W-9002-m_1.0", *BUSY), thread("W-9003-m_1.0", *BUSY),
    ])  # fmt: skip
    # One that is starting waits for its model, and has no request: it is not among the READY.
    for ready, count in (({"9000", "9001"}, 0), ({"9000", "9001", "9002"}, 1), ({"9002", "9003"}, 2), (set[str](), 0)):
        assert busy_workers(dump, ready) == count


def seen(**fields: float) -> Look:
    nothing = {"waiting": 0, "busy": 0, "leaving": 0, "arrived": 7, "delay_s": 0.05, "response_timeout_s": 10}
    return Look(**{**nothing, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("looks", "is_answered", "count"),
    [
        # One look is not enough: a batch that is being filled looks idle.
        ([seen(), seen()], True, 2),
        ([seen(waiting=3), seen(busy=1), seen(leaving=1), seen(), seen()], True, 5),
        # Something came and went between two looks.
        ([seen(), seen(arrived=8), seen(arrived=8)], True, 3),
        # Clients that go on are waited for as long as an answer may take.
        ([seen(busy=1, response_timeout_s=1.0)], False, 5),
        # It is gone.
        ([], False, 1),
    ],
)
def test_server_is_waited_for_until_two_looks_see_nothing(
    looks: list[Look], is_answered: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.properties"
    config.write_text(config_for((ROOT / "config.properties").read_text(), Ports.free(), ROOT, tmp_path))
    now, taken, said = [0.0], list[int](), list[str]()

    def look(_: Server) -> Look:
        taken.append(min(len(taken), len(looks) - 1))
        if not looks:
            raise OSError
        return looks[taken[-1]]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(in_flight, "look", look)
    server = Server(config, directory=tmp_path, temporary=tmp_path)
    assert wait_answered(server, said.append, clock=lambda: now[0], sleep=sleep) is is_answered
    assert len(taken) == count
    assert bool(said) == any(not looks[number].is_idle for number in taken if looks)
