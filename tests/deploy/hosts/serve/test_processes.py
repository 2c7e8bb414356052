"""Several processes behind one port: `python -m deploy.hosts.serve --processes 2`; the model tells its process."""

import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
from tritonclient import grpc as grpcclient

from deploy.hosts.serve import totals
from deploy.hosts.serve.server import Series
from deploy.hosts.serve.shares import choose_count, own_cores
from deploy.hosts.serve.totals import Totals
from tests.deploy.hosts.serve.conftest import number_archive
from tests.hosts import Host, is_ready, serving, start
from tests.tables import table
from tests.waiting import PATIENCE_S, until

INFER = "import os\n\ndef infer(x):\n    return {'y': x * 0 + SIGN * os.getpid()}\n"


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return number_archive("pids", INFER.replace("SIGN", "1"), tmp_path_factory.mktemp("pids"))


@pytest.fixture
def serve(pids: Path, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    with ExitStack() as stack:

        def run(archive: Path = pids, processes: int | str = 2, **more: float) -> Host:
            limits = {"notice_s": 1.0, "drain_s": 20.0, **more}
            words = "--processes", processes
            return stack.enter_context(serving(archive, *words, folder=tmp_path, log=tmp_path / "log", **limits))

        yield run


def ask(host: Host, session: requests.Session) -> int:
    answer = session.post(f"{host.url}/predictions/pids", json={"x": 1}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["y"]
    return found


def children(host: Host) -> list[int]:
    return [each.pid for each in psutil.Process(host.process.pid).children()]


def hold_evenly(host: Host, stack: ExitStack) -> None:
    """Open connections until each process has as many; the supervisor has heard of the end of all others by then."""
    found = Counter[int]()

    def is_even() -> bool:
        found[ask(host, stack.enter_context(requests.Session()))] += 1
        return len(found) == 2 and len({*found.values()}) == 1

    until(is_even)


def spread(host: Host, connections: int) -> list[int]:
    """Return how many of so many connections each process has."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(requests.Session()) for _ in range(connections)]
        found = [ask(host, each) for each in sessions]
        assert found == [ask(host, each) for each in sessions], "a connection has changed its process"
    return sorted(Counter(found).values())


def spread_grpc(host: Host, connections: int) -> list[int]:
    with ExitStack() as stack:
        local = [("grpc.use_local_subchannel_pool", 1)]
        clients = [
            stack.enter_context(grpcclient.InferenceServerClient(host.grpc, channel_args=local))
            for _ in range(connections)
        ]
        number = grpcclient.InferInput("x", [1], "INT64")
        number.set_data_from_numpy(np.array([1]))
        found = [int(each.infer("pids", [number]).as_numpy("y")[0]) for each in clients]
    return sorted(Counter(found).values())


def counted(host: Host) -> float:
    """Return the answered requests; 0 from a process that is killed meanwhile."""
    try:
        text = requests.get(f"{host.url}/metrics", timeout=PATIENCE_S).text
    except requests.ConnectionError:
        return 0.0
    return sum(float(value) for value in re.findall(r"^handler_request_seconds_count\{.*\} (.*)$", text, re.MULTILINE))


@contextmanager
def load(host: Host, connections: int) -> Iterator[tuple[Counter[int], list[tuple[int, Exception]]]]:
    """Ask on so many connections, and yield who answers, and whose connections fail; each failure makes another one."""
    answers, failures, is_over = Counter[int](), list[tuple[int, Exception]](), threading.Event()

    def client() -> None:
        while not is_over.is_set():
            process = 0  # of a connection without an answer
            with requests.Session() as session:
                try:
                    while not is_over.is_set():
                        process = ask(host, session)
                        answers[process] += 1
                except (requests.RequestException, AssertionError) as error:
                    failures.append((process, error))
                    is_over.wait(0.05)

    with ThreadPoolExecutor(connections) as pool:
        running = [pool.submit(client) for _ in range(connections)]
        try:
            yield answers, failures
        finally:
            is_over.set()
    assert all(each.exception() is None for each in running)


@pytest.mark.builds
def test_connections_are_spread_evenly_and_a_killed_process_is_replaced(
    serve: Callable[..., Host], tmp_path: Path
) -> None:
    host = serve()
    for count, connections, expected in ((spread, 64, [32, 32]), (spread_grpc, 4, [2, 2])):
        with ExitStack() as stack:
            hold_evenly(host, stack)
            assert count(host, connections) == expected
    with load(host, 8) as (answers, failures):
        until(lambda: len(answers) == 2)
        killed, before = next(iter(answers)), counted(host)
        os.kill(killed, signal.SIGKILL)
        # Others are answered meanwhile, and the successor gets its share of the connections.
        until(lambda: counted(host) >= before and len(answers) == 3)
    # Requests on their way to it are lost: on its connections, and on new ones that it has taken.
    assert {process for process, _ in failures} <= {killed, 0} and len(failures) <= 8
    assert re.search(r"process [12] has ended \(signal 9\); another starts", (tmp_path / "log").read_text())


@pytest.mark.builds
def test_connection_that_a_killed_process_has_not_taken_goes_to_another(
    serve: Callable[..., Host], tmp_path: Path
) -> None:
    host = serve()
    with ExitStack() as stack:
        hold_evenly(host, stack)
        stopped = children(host)[0]
        os.kill(stopped, signal.SIGSTOP)
        # Open to the end: else the second would go to the same process again.
        sessions, pool = [stack.enter_context(requests.Session()) for _ in range(2)], ThreadPoolExecutor(2)
        answers = [stack.enter_context(pool).submit(ask, host, each) for each in sessions]
        until(lambda: any(each.done() for each in answers))
        assert not all(each.done() for each in answers)
        os.kill(stopped, signal.SIGKILL)
        assert stopped not in [each.result() for each in answers]
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.builds
def test_sighup_replaces_each_process_without_a_lost_request(serve: Callable[..., Host], tmp_path: Path) -> None:
    old, new = (tmp_path / each for each in ("old", "new"))
    for each in (old, new):
        each.mkdir()
    archive = number_archive("pids", INFER.replace("SIGN", "1"), old)
    successor = number_archive("pids", INFER.replace("SIGN", "-1"), new)
    host = serve(archive)
    with load(host, 8) as (answers, failures):
        until(lambda: len(answers) == 2)
        archive.write_bytes(archive.read_bytes()[:1000])
        host.process.send_signal(signal.SIGHUP)
        until(
            lambda: (
                "the new archive does not load; the processes of the old one go on" in (tmp_path / "log").read_text()
            )
        )
        assert len(answers) == 2
        successor.replace(archive)
        host.process.send_signal(signal.SIGHUP)
        until(lambda: len([each for each in answers if each < 0]) == 2)
        until(lambda: len(children(host)) == 2)
        answers.clear()
        until(lambda: len(answers) == 2)
        assert max(answers) < 0
    assert failures == []


@pytest.mark.builds
def test_sigterm_answers_all_and_a_killed_supervisor_leaves_no_process(serve: Callable[..., Host]) -> None:
    host = serve()
    with load(host, 8) as (_, failures):
        until(lambda: len(children(host)) == 2)
        host.process.send_signal(signal.SIGTERM)
        until(lambda: not is_listening(host))
        assert not [error for _, error in failures if "reset" in str(error).lower()]
    assert host.process.wait(PATIENCE_S) == 0
    host = serve()
    until(lambda: len(children(host)) == 2)
    left = [psutil.Process(each) for each in children(host)]
    host.kill()
    assert not psutil.wait_procs(left, PATIENCE_S)[1]


@pytest.mark.builds
def test_sigterm_soon_after_a_process_has_ended_ends_its_successor_too(
    serve: Callable[..., Host], tmp_path: Path
) -> None:
    host = serve()
    with ExitStack() as stack:
        hold_evenly(host, stack)
    os.kill(children(host)[0], signal.SIGKILL)
    until(lambda: "another starts" in (tmp_path / "log").read_text())
    host.process.send_signal(signal.SIGTERM)
    # It would be killed with the supervisor, which then ends with 1.
    assert host.process.wait(PATIENCE_S) == 0


def is_listening(host: Host) -> bool:
    try:
        requests.get(f"{host.url}/ping", timeout=5)
    except requests.ConnectionError:
        return False
    return True


@pytest.mark.builds
def test_processes_are_measured_and_a_failed_start_is_one_line(serve: Callable[..., Host], tmp_path: Path) -> None:
    host = serve(processes="auto")
    assert f"Processes  {len(os.sched_getaffinity(0))}" in (tmp_path / "log").read_text()
    host.end()
    (broken := tmp_path / "broken.mar").write_bytes(b"PK")
    failed = start(broken, "--processes", 2, log=tmp_path / "log")
    assert failed.process.wait(PATIENCE_S) == 1 and len((tmp_path / "log").read_text().splitlines()) == 1


@table((1.0, 0.0, 8), (1.0, 1.0, 4), (1.0, 7.0, 1), (0.1, 100.0, 1), (0.0, 1.0, 1))
def test_as_many_processes_as_keep_all_cores_busy(python_s: float, cores_s: float, count: int) -> None:
    assert choose_count(8, python_s, cores_s) == count


@table((1, 1, []), (1, 5, []), (1, 2, [0, 1, 2, 3]), (2, 2, [4, 5, 6, 7]), (3, 2, [0, 1, 2, 3]), (4, 4, [6, 7]))
def test_processes_have_cores_of_their_own_if_there_are_two_for_each(number: int, count: int, cores: list[int]) -> None:
    assert own_cores([*range(8)], number, count) == cores


def test_counters_outlive_their_process(tmp_path: Path) -> None:
    def counters(number: int, value: float) -> Totals:
        return Totals({"a": Series(("M",), {("m",): value})}, tmp_path / f"{number}.json")

    first, second = counters(1, 2.0), counters(2, 30.0)
    first.write()
    second.write()
    # The successor of the first has its file.
    successor = counters(1, 100.0)
    assert successor.read() == {"a": (["M"], {("m",): 132.0})} and second.read() == {"a": (["M"], {("m",): 32.0})}
    successor.write()
    assert second.read() == successor.read()


def test_counters_are_written_again_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "WRITTEN_S", 0.01)
    # As on a full disk, no file can be written there.
    (blocked := tmp_path / "folder" / "1.new").mkdir(parents=True)
    file = blocked.with_suffix(".json")
    own = Totals({"a": Series(("M",), {("m",): 2.0})}, file)
    failed, write = threading.Event(), own.write

    def write_or_fail() -> None:
        try:
            write()
        except OSError:
            failed.set()
            raise

    monkeypatch.setattr(own, "write", write_or_fail)
    own.start()
    assert failed.wait(PATIENCE_S)
    blocked.rmdir()
    until(file.exists)
    shutil.rmtree(file.parent)  # as the supervisor's end does


@pytest.mark.builds
def test_two_archives_of_one_process_answer_as_their_models(pids: Path, tmp_path: Path) -> None:
    doubles = number_archive("doubles", "def infer(x):\n    return {'y': x * 2}\n", tmp_path)
    host = start(pids, doubles, log=tmp_path / "log")
    try:
        until(lambda: is_ready(host))
        assert ask(host, requests.Session()) == host.process.pid
        answer = requests.post(f"{host.url}/predictions/doubles", json={"x": 3}, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()) == (200, {"y": 6})
        listed = requests.get(f"{host.url}/models", timeout=PATIENCE_S).json()["models"]
        assert [each["modelName"] for each in listed] == ["pids", "doubles"]
        assert [
            requests.get(f"{host.url}/models/{name}", timeout=PATIENCE_S).status_code for name in ("pids", "x")
        ] == [200, 404]
        text = requests.get(f"{host.url}/metrics", timeout=PATIENCE_S).text
        assert set(re.findall(r'handler_request_seconds_count\{ModelName="(\w+)"', text)) <= {"pids", "doubles"}
    finally:
        host.end()


@pytest.mark.builds
def test_process_whose_event_loop_does_not_run_is_replaced_while_others_answer(
    serve: Callable[..., Host], tmp_path: Path
) -> None:
    host = serve(heartbeat_s=4.0)
    with ExitStack() as stack:
        hold_evenly(host, stack)
    stopped, other = children(host)
    (described,) = requests.get(f"{host.url}/models/pids", timeout=PATIENCE_S).json()
    assert {each["pid"] for each in described["workers"]} == {stopped, other}
    os.kill(stopped, signal.SIGSTOP)
    with load(host, 4) as (answers, failures):
        until(lambda: len({*answers} - {other}) == 1 and not psutil.pid_exists(stopped))
    assert stopped not in answers and answers[other]
    assert {process for process, _ in failures} <= {0}
    assert "has not answered for 4 s, and is killed" in (tmp_path / "log").read_text()
