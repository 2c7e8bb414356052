"""Rollouts and canaries on several nodes, with scripted servers."""

import argparse
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.client.script import Fake, Script, failed, ok
from tests.tables import table
from torchserve_client import Client, Gateway, Management, NoConnection, Nodes, NodesFailed, RolloutFailed, journal
from torchserve_client import archives as archive_files
from torchserve_client.commands import register
from torchserve_client.files import remove
from torchserve_client.gateway import MOMENT_S
from torchserve_client.journal import Entry, Journal
from torchserve_client.management import POLL_S, ManagementError
from torchserve_client.rollout import Registration, Rollout
from torchserve_client.transport import Request, Response

MODEL = "m"
BUILT_AGAIN = r"^m is not the archive that version 1\.0 was registered from: raise `version`"


class Killed(BaseException):
    """As a SIGKILL: from then on the process changes nothing."""


class FakeServer(Fake):
    """A management API with the versions of one model, in memory."""

    def __init__(self, *, refused: str = "", is_away: bool = False) -> None:
        self.versions = {"1.0": "m"}
        self.default = "1.0"
        self.calls: list[str] = []
        self.registered: dict[str, list[str]] = {}
        self.refused, self.is_away = refused, is_away
        self.workers, self.pending = 1, 0
        self.batches: dict[str, tuple[int, int]] = {}
        self.kill_at = -1  # the number of the call before which the rollout is killed
        self.kills: list[int] = []  # of all nodes

    def send(self, request: Request, timeout_s: float) -> Response:  # noqa: PLR0911
        if self.is_away:
            raise NoConnection("refused", was_sent=False)
        if len(self.calls) == self.kill_at:
            self.kills.append(self.kill_at)
        if self.kills:
            raise Killed
        url = urlsplit(request.url)
        self.calls.append(f"{request.method} {url.path}")
        if self.refused and re.search(self.refused, self.calls[-1]):
            return failed(500, "InternalServerException", "no room")
        parts = url.path.split("/")[3:]
        if request.method == "POST":
            self.registered = parse_qs(url.query)
            archive = self.registered["url"][0]
            version = archive_files.describe(self.store / archive).version
            if version in self.versions:
                return failed(409, "ConflictStatusException", "already registered")
            self.versions[version] = archive
            sizes = [int(self.registered[name][0]) for name in ("batch_size", "max_batch_delay")]
            self.batches[version] = sizes[0], sizes[1]
        elif request.method == "DELETE":
            if parts[0] not in self.versions:
                return failed(404, "ModelVersionNotFoundException", "no such version")
            if parts[0] == self.default and len(self.versions) > 1:
                return failed(403, "InvalidModelVersionException", "Can't remove default version")
            del self.versions[parts[0]]
        elif parts[-1:] == ["set-default"]:
            self.default = parts[0]
        elif parts == ["all"]:
            return ok([{"modelVersion": version} for version in self.versions])
        else:
            return ok([self._described(parts[0] if parts else self.default)])
        return ok({})

    def _described(self, version: str) -> dict[str, Any]:
        workers = [{"status": "READY", "startTime": "2026-01-01T00:00:00Z"}] * self.workers
        found = {"modelVersion": version, "modelUrl": self.versions[version], "minWorkers": 1, "workers": workers}
        size, delay_ms = self.batches.get(version, (8, 5))
        settings = {"batchSize": size, "maxBatchDelay": delay_ms, "startupTimeout": 5, "responseTimeout": 5}
        return {**found, **settings, "jobQueueStatus": {"pendingRequests": self.pending}}

    @property
    def state(self) -> tuple[str, list[str]]:
        """The default version, and all."""
        return self.default, [*self.versions]

    store = Path()


class FakeGateway(Fake):
    """A control API with one model's canary and its withdrawals; it notices a version at the third request."""

    def __init__(self, *servers: FakeServer) -> None:
        self.canary: dict[str, Any] | None = None
        self.unseen = 2
        self.servers = servers
        # Its decisions on the model, with the versions of each node at that time.
        self.withdrawals: list[tuple[str | None, bool, list[list[str]]]] = []
        # Requests in flight at each poll; None while Envoy does not respond.
        self.in_flight: list[int | None] = [None, 3, 0]
        self.counted: list[str | None] = []  # the version of the last poll

    def send(self, request: Request, timeout_s: float) -> Response:
        if "/control/models/" in request.url:
            return self._withdraw(request)
        if request.method == "PUT":
            if self.unseen:
                self.unseen -= 1
                return failed(404, "NotFound", "no version 1.0-r2")
            self.canary = json.loads(request.body)
        elif request.method == "DELETE":
            self.canary = None
        elif self.canary is None:
            return failed(404, "NotFound", "no canary of m")
        return ok(self.canary or {})

    def _withdraw(self, request: Request) -> Response:
        version, is_withdrawn = parse_qs(urlsplit(request.url).query).get("version", [None])[0], True
        if request.method == "PUT":
            asked = json.loads(request.body)
            version, is_withdrawn = asked["version"], asked["withdrawn"]
            self.withdrawals.append((version, is_withdrawn, [list(server.versions) for server in self.servers]))
            return ok({})
        self.counted = [version]
        assert all(version is None or version in server.versions for server in self.servers)
        return ok({"in_flight": self.in_flight.pop(0) if len(self.in_flight) > 1 else self.in_flight[0]})


class Worker(Fake):
    """An adaptive worker, with one of the numbers in flight at each poll."""

    def __init__(self, server: FakeServer, *in_flight: int) -> None:
        self.in_flight = list(in_flight)
        self.server = server

    def send(self, request: Request, timeout_s: float) -> Response:
        assert request.url.endswith("/predictions/m/1.0")
        assert "DELETE /models/m/1.0" not in self.server.calls
        in_flight = self.in_flight.pop(0) if "1.0-r2" in self.server.versions else 0
        return Response(200, b"{}", {"X-In-Flight": str(in_flight), "X-Fingerprint": "old"})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "m", "1.0")
    monkeypatch.setattr(FakeServer, "store", tmp_path)
    return tmp_path


def write(folder: Path, version: str, config: str = "", name: str = MODEL) -> None:
    """Write an archive as a folder."""
    model = {"modelName": name, "modelVersion": version, **({"configFile": "model-config.yaml"} if config else {})}
    (folder / "MAR-INF").mkdir(parents=True, exist_ok=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": model}))
    (folder / "model-config.yaml").write_text(config)


def rollouts(
    store: Path, *servers: FakeServer, gateway: FakeGateway | None = None, inference: Worker | None = None
) -> Rollout:
    managements = {f"node-{number}": Management("http://n", transport=each) for number, each in enumerate(servers, 1)}
    clients = {name: Client("http://n", transport=inference) for name in managements} if inference else {}
    edge = Gateway("http://g", transport=gateway) if gateway else None
    return Rollout(Nodes(managements, inference=clients), store, edge, store, sleep=lambda _: None)


def names(store: Path) -> set[str]:
    return {path.name for path in store.glob("m*")}


def test_rollout_registers_everywhere_before_any_default_changes_and_withdraws_the_old_version(store: Path) -> None:
    servers = [FakeServer(), FakeServer()]
    gateway = FakeGateway(*servers)
    assert rollouts(store, *servers, gateway=gateway).run(MODEL, Registration(batch_size=4)) == "1.0-r2"
    assert [server.state for server in servers] == [("1.0-r2", ["1.0-r2"])] * 2
    assert names(store) == {"m", "m@1.0-r2"}
    assert gateway.counted == ["1.0"]
    # Withdrawn when no node had it as its default, and forgotten when no node had it.
    assert gateway.withdrawals == [("1.0", True, [["1.0", "1.0-r2"]] * 2), ("1.0", False, [["1.0-r2"]] * 2)]
    assert gateway.in_flight == [0]
    # A second rollout removes the copy of the first one.
    rollouts(store, *servers).run(MODEL, Registration(batch_size=2))
    assert [server.state for server in servers] == [("1.0-r3", ["1.0-r3"])] * 2
    assert names(store) == {"m", "m@1.0-r3"}


def test_requests_in_flight_are_counted_once_the_gateway_and_its_envoy_have_the_new_routes(store: Path) -> None:
    server, events = FakeServer(), list[object]()
    gateway = FakeGateway(server)
    answer = gateway._withdraw
    gateway._withdraw = lambda request: events.append(request.method) or answer(request)  # type: ignore[method-assign,func-returns-value]
    rollout = replace(rollouts(store, server, gateway=gateway), sleep=events.append)
    rollout.run(MODEL, Registration(batch_size=4))
    withdrawn = events.index("PUT")
    # The count is asked for until it is 0, and a version drains after another moment.
    polls = ["GET", POLL_S] * 2
    assert events[withdrawn : withdrawn + 8] == ["PUT", MOMENT_S, *polls, "GET", MOMENT_S]


def test_adaptive_version_is_unregistered_when_its_worker_has_answered_everything(store: Path) -> None:
    write(store / "m", "1.0", "continuousBatching: true")
    server = FakeServer()
    worker = Worker(server, 3, 0, 1, 0, 0)
    rollouts(store, server, inference=worker).run(MODEL, Registration(batch_size=4))
    # Zero twice: responses of the worker's last exchange may be on their way at the first.
    assert (worker.in_flight, list(server.versions)) == ([], ["1.0-r2"])


def test_version_of_several_workers_has_its_response_timeout_before_it_is_unregistered(store: Path) -> None:
    server = FakeServer()
    server.workers = 2
    waits: list[tuple[float, bool]] = []
    rollout = rollouts(store, server, inference=Worker(server, 0, 0))
    replace(rollout, sleep=lambda s: waits.append((s, "1.0" in server.versions))).run(MODEL, Registration(batch_size=4))
    # One idle worker proves nothing about the other.
    assert (5.0, True) in waits


@table(
    ("batchSize: 32\nmaxBatchDelay: 1", {}, "batch_size 8 -> 32, max_batch_delay 5 -> 1 ms, 1 worker"),
    ("batchSize: 32\nmaxBatchDelay: 5", {"batch_size": 4}, "batch_size 8 -> 4, max_batch_delay 5 ms, 1 worker"),
    ("batchSize: 0\nmaxBatchDelay: soon", {}, "batch_size 8, max_batch_delay 5 ms, 1 worker"),
)
def test_new_archives_parameters_are_taken(config: str, wanted: dict[str, Any], words: str, store: Path) -> None:
    write(store / "new", "2.0", config)
    server, said = FakeServer(), list[str]()
    replace(rollouts(store, server), report=said.append).run(MODEL, Registration(archive="new", **wanted))
    assert said[0] == f"m: version 2.0 is registered, {words}"
    sizes = [int(server.registered[name][0]) for name in ("batch_size", "max_batch_delay")]
    assert [f" {sizes[0]}, " in words, f" {sizes[1]} ms" in words] == [True, True]


@table(
    (FakeServer(refused="POST"), RolloutFailed, "node-2: no room; no node has changed"),
    (FakeServer(is_away=True), NodesFailed, r"node-2: no TorchServe answers at .*; done: node-1"),
)
def test_rollout_a_node_refuses_is_undone(second: FakeServer, error: type[Exception], words: str, store: Path) -> None:
    first = FakeServer()
    with pytest.raises(error, match=words):
        rollouts(store, first, second).run(MODEL, Registration(batch_size=4))
    assert [server.state for server in (first, second)] == [("1.0", ["1.0"])] * 2
    assert names(store) == {"m"}


def test_new_version_that_cannot_be_unregistered_again_is_named_and_the_next_rollout_goes_on_with_it(
    store: Path,
) -> None:
    first, second, said = FakeServer(refused="DELETE"), FakeServer(refused="POST"), list[str]()
    with pytest.raises(RolloutFailed, match="node-2: no room"):
        replace(rollouts(store, first, second), report=said.append).run(MODEL, Registration(batch_size=4))
    assert said[-1] == "node-1: m: version 1.0-r2 could not be unregistered: no room"
    assert ([first.state, second.state], names(store)) == (
        [("1.0", ["1.0", "1.0-r2"]), ("1.0", ["1.0"])],
        {"m", "m@1.0-r2"},
    )
    first.refused = second.refused = ""
    assert rollouts(store, first, second).run(MODEL, Registration(batch_size=4)) == "1.0-r2"
    assert [server.state for server in (first, second)] == [("1.0-r2", ["1.0-r2"])] * 2


def test_old_version_that_cannot_be_unregistered_is_put_back(store: Path) -> None:
    gateway = FakeGateway(FakeServer(refused="DELETE"), FakeServer())
    with pytest.raises(NodesFailed, match="node-1: no room; done: node-2"):
        rollouts(store, *gateway.servers, gateway=gateway).run(MODEL, Registration(batch_size=4))
    assert [each[:2] for each in gateway.withdrawals] == [("1.0", True), ("1.0", False)]


def test_model_is_unregistered_when_the_gateway_has_nothing_in_flight_and_forgotten_then(store: Path) -> None:
    gateway = FakeGateway(FakeServer(), FakeServer())
    for server in gateway.servers:
        server.versions["2.0"] = "m"
    rollouts(store, *gateway.servers, gateway=gateway).unregister(MODEL)
    assert gateway.withdrawals == [(None, True, [["1.0", "2.0"]] * 2), (None, False, [[]] * 2)]
    assert gateway.in_flight == [0]


def test_canary_that_the_gateway_refuses_is_unregistered_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_client.retirement.NOTICE_S", -1.0)
    server = FakeServer()
    with pytest.raises(ManagementError, match=r"no version 1\.0-r2"):
        rollouts(store, server, gateway=FakeGateway()).try_canary(MODEL, Registration(batch_size=4), 5, None)
    assert (list(server.versions), names(store)) == (["1.0"], {"m"})


@table(
    (lambda to: write(to / "new", "2.0", name="other"), {"archive": "new"}, "new contains the model other, not m"),
    (lambda to: write(to / "new", "1.0"), {"archive": "new"}, r"version 1\.0 of new is already registered: raise `ver"),
)
def test_archive_that_cannot_be_the_next_version_is_refused(
    prepare: Callable[[Path], object], wanted: Any, words: str, store: Path
) -> None:
    prepare(store)
    server = FakeServer()
    with pytest.raises(RolloutFailed, match=words):
        rollouts(store, server).run(MODEL, Registration(**wanted))
    assert (server.state, server.registered) == (("1.0", ["1.0"]), {})


def kill(store: Path, servers: list[FakeServer], new: Registration, step: int) -> bool:
    """Run a rollout and kill it before a call to the last node; return whether it was killed."""
    last, kills = servers[-1], list[int]()
    last.kill_at = len(last.calls) + step
    for each in servers:
        each.kills = kills
    with pytest.MonkeyPatch.context() as patch:

        def alive(change: Callable[..., object]) -> Callable[..., object]:
            return lambda *arguments: None if kills else change(*arguments)

        patch.setattr(Journal, "_write", alive(Journal._write))
        patch.setattr(journal, "remove", alive(remove))
        with suppress(Killed, RolloutFailed):
            rollouts(store, *servers).run(MODEL, new)
    last.kill_at = -1
    for each in servers:
        each.kills = []
    return bool(kills)


def test_killed_register_is_repeated_and_another_archive_is_a_conflict(store: Path) -> None:
    write(store / "new", "2.0")
    (store / "new" / "build.json").write_text('{"fingerprint": "own"}')
    given = {"model": MODEL, "archive": "new", "batch_size": 4, "max_batch_delay": 5}
    options = argparse.Namespace(**given, logs=store, model_store=store, wait=True)
    inference = Client("http://n", transport=Script(Response(200, b"{}", {"X-Fingerprint": "own"})))
    step, is_killed = 0, True
    while is_killed:
        server = FakeServer()
        nodes, is_killed = Nodes({"n": Management("http://n", transport=server)}), False
        server.kill_at = step
        try:
            register(options, nodes, inference)
        except Killed:
            is_killed, server.kills = True, []
        server.kill_at = -1
        assert register(options, nodes, inference) == 0 and [*server.versions] == ["1.0", "2.0"], step
        step += 1
    assert step > 5
    for other in ({"batch_size": 8}, {"archive": "m"}):
        with pytest.raises(ManagementError, match="already registered"):
            register(argparse.Namespace(**{**vars(options), **other}), nodes, inference)
    (store / "new" / "build.json").write_text('{"fingerprint": "built again"}')
    with pytest.raises(ManagementError, match="already registered"):
        register(options, nodes, inference)


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("is_back", [False, True])
def test_killed_rollout_is_repeated_or_taken_back(is_copy: bool, is_back: bool, store: Path) -> None:
    new = Registration(batch_size=4) if is_copy else Registration(archive="new")
    for step in range(100):
        shutil.rmtree(store)
        write(store / "m", "1.0")
        write(store / "new", "2.0")
        servers = [FakeServer(), FakeServer()]
        is_killed = kill(store, servers, new, step)
        # Another one, which is killed at the same place.
        other = Registration(archive="m") if is_back else new
        is_killed_again = is_killed and not is_back and kill(store, servers, new, step)
        try:
            version = rollouts(store, *servers).run(MODEL, other)
        except RolloutFailed as error:
            # It had not begun, or it has ended.
            assert "is already registered: raise" in str(error)
            version = servers[0].default
        assert [server.state for server in servers] == [(version, [version])] * 2, step
        expected = "1.0" if is_back else "1.0-r" if is_copy else "2.0"
        assert version.startswith(expected)
        assert {path.name for path in store.iterdir()} - {"m", "new", f"m@{version}"} == set(), step
        if is_copy and not is_back:
            assert {server.batches[version] for server in servers} == {(4, 5)}
        if not is_killed:
            break
    assert step > 6 and is_killed_again is False


def test_archive_that_was_built_again_is_not_copied_whatever_the_clocks_say(store: Path) -> None:
    server = FakeServer()
    for fingerprint, outcome in (("new", pytest.raises(RolloutFailed, match=BUILT_AGAIN)), ("old", nullcontext())):
        (store / "m" / "build.json").write_text(json.dumps({"fingerprint": fingerprint}))
        with outcome:
            rollouts(store, server, inference=Worker(server, 0, 0)).run(MODEL, Registration(batch_size=4))
    assert server.state == ("1.0-r2", ["1.0-r2"])


def test_version_whose_queue_does_not_empty_stays(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchserve_client.retirement.DRAIN_S", -1.0)
    server = FakeServer()
    server.pending = 1
    with pytest.raises(RolloutFailed, match=r"requests still wait for version 1\.0"):
        rollouts(store, server).run(MODEL, Registration(batch_size=4))
    assert server.state == ("1.0-r2", ["1.0", "1.0-r2"])


def tried(store: Path) -> tuple[FakeGateway, Callable[[], Rollout]]:
    gateway = FakeGateway(FakeServer(), FakeServer())
    rollout = rollouts(store, *gateway.servers, gateway=gateway)
    rollout.try_canary(MODEL, Registration(batch_size=4), 5, ("X-Try", "yes"))
    return gateway, lambda: rollouts(store, *gateway.servers, gateway=gateway)


def test_canary_is_registered_beside_the_old_version_and_waits_until_the_gateway_sees_it(store: Path) -> None:
    gateway, again = tried(store)
    assert gateway.canary == {"version": "1.0-r2", "percent": 5, "header": ["X-Try", "yes"]}
    assert [each.state for each in gateway.servers] == [("1.0", ["1.0", "1.0-r2"])] * 2
    # Only the share changes.
    again().try_canary(MODEL, Registration(), 50, None)
    assert gateway.canary == {"version": "1.0-r2", "percent": 50, "header": ["X-Try", "yes"]}
    for other in (partial(again().try_canary, percent=5, header=None), again().run):
        with pytest.raises(RolloutFailed, match="--promote or --abort it first"):
            other(MODEL, Registration(batch_size=2))
    # It is not promoted where a node lacks it.
    del gateway.servers[1].versions["1.0-r2"]
    with pytest.raises(RolloutFailed, match=r"node-2 has no version 1\.0-r2; nothing has changed"):
        again().promote(MODEL)
    assert gateway.canary is not None and {server.default for server in gateway.servers} == {"1.0"}


@table(
    ("promote", "1.0-r2", "1.0", {"m", "m@1.0-r2"}),
    ("abort", "1.0", "1.0-r2", {"m"}),
)
def test_canary_that_ends_leaves_one_version(end: str, kept: str, retired: str, copies: set[str], store: Path) -> None:
    gateway, again = tried(store)
    assert getattr(again(), end)(MODEL) == "1.0-r2"
    assert gateway.canary is None
    assert [server.state for server in gateway.servers] == [(kept, [kept])] * 2
    assert names(store) == copies
    # Withdrawn while both nodes had it, forgotten when neither had.
    assert gateway.withdrawals == [(retired, True, [["1.0", "1.0-r2"]] * 2), (retired, False, [[kept]] * 2)]
    for each in (again().promote, again().abort):
        with pytest.raises(RolloutFailed, match="m has no canary"):
            each(MODEL)


@table(("promote", "1.0-r2"), ("abort", "1.0"), ("try_canary", "1.0"))
def test_canary_command_that_is_killed_before_it_retires_goes_on(end: str, kept: str, store: Path) -> None:
    def kill(*_: object) -> None:
        raise Killed

    is_tried = end == "try_canary"
    gateway = FakeGateway(FakeServer(), FakeServer()) if is_tried else tried(store)[0]
    new = {"new": Registration(batch_size=4), "percent": 5, "header": None} if is_tried else {}
    again = partial(rollouts, store, *gateway.servers, gateway=gateway)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Rollout, "_finish", kill)
        getattr(again(), end)(MODEL, **new)
    # It returns the version that serves now, or that is tried.
    assert getattr(again(), end)(MODEL, **new) == ("1.0-r2" if is_tried else kept)
    versions = ["1.0", "1.0-r2"] if is_tried else [kept]
    assert [server.state for server in gateway.servers] == [(kept, versions)] * 2
    assert ((gateway.canary or {}).get("percent"), [*store.glob(".*")]) == (5 if is_tried else None, [])


def replaced(store: Path) -> FakeServer:
    """Return a server on which a rollout to the archive `new` was killed before the old version was retired."""
    write(store / "new", "2.0")
    server = FakeServer()
    assert kill(store, [server], Registration(archive="new", batch_size=4), 6)
    assert server.state == ("2.0", ["1.0", "2.0"])
    return server


def test_interrupted_repeat_keeps_the_archive_of_the_default(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    assert kill(store, [server], Registration(batch_size=4), 7)
    assert server.state == ("1.0-r2", ["1.0", "1.0-r2"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("torchserve_client.rollout.wait_loaded", interrupt)
        rollouts(store, server).run(MODEL, Registration(batch_size=4))
    assert names(store) == {"m", "m@1.0-r2"}
    assert rollouts(store, server).run(MODEL, Registration(batch_size=4)) == "1.0-r2"
    assert (server.state, names(store)) == (("1.0-r2", ["1.0-r2"]), {"m", "m@1.0-r2"})


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@table(
    (Registration(archive="new", batch_size=2), "2.0 serves, with another batch_size"),
    (Registration(archive="newest"), "no room"),
)
def test_failed_rollout_leaves_a_killed_one_to_its_repeat(other: Registration, words: str, store: Path) -> None:
    server = replaced(store)
    write(store / "newest", "3.0")
    server.refused = "POST"
    with pytest.raises(ManagementError, match=words):
        rollouts(store, server).run(MODEL, other)
    server.refused = ""
    assert rollouts(store, server).run(MODEL, Registration(archive="new", batch_size=4)) == "2.0"
    assert (server.state, names(store)) == (("2.0", ["2.0"]), {"m"})


@pytest.mark.parametrize("is_late", [False, True])
def test_registration_without_an_answer_is_undone_or_known_to_the_next(is_late: bool, store: Path) -> None:
    server = FakeServer()
    send, late = server.send, list[Request]()

    def lose(request: Request, timeout_s: float) -> Response:
        if request.method == "POST":
            late.append(request) if is_late else send(request, timeout_s)
            raise NoConnection("reset", was_sent=True)
        return send(request, timeout_s)

    server.send = lose  # type: ignore[method-assign]
    with pytest.raises(ManagementError, match="no TorchServe answers"):
        rollouts(store, server).run(MODEL, Registration(batch_size=4))
    assert server.state == ("1.0", ["1.0"])
    server.send = send  # type: ignore[method-assign]
    for request in late:
        server.send(request, 1)
    assert rollouts(store, server).run(MODEL, Registration(batch_size=4)) == "1.0-r2"
    assert (server.state, names(store)) == (("1.0-r2", ["1.0-r2"]), {"m", "m@1.0-r2"})


def test_way_back_with_another_batch_drains_what_it_registers_again(store: Path) -> None:
    server = replaced(store)
    gateway = FakeGateway(server)
    assert rollouts(store, server, gateway=gateway).run(MODEL, Registration(archive="m", batch_size=2)) == "1.0"
    assert gateway.withdrawals[0] == ("1.0", True, [["1.0", "2.0"]])
    assert (server.state, server.batches["1.0"]) == (("1.0", ["1.0"]), (2, 5))


def test_old_versions_that_differ_are_retired_on_each_node(store: Path) -> None:
    servers = [FakeServer(), FakeServer()]
    servers[1].versions, servers[1].default = {"0.9": "m"}, "0.9"
    write(store / "new", "2.0")
    rollouts(store, *servers).run(MODEL, Registration(archive="new"))
    assert [server.state for server in servers] == [("2.0", ["2.0"])] * 2


def test_canary_that_is_the_default_of_a_node_is_not_aborted(store: Path) -> None:
    gateway, again = tried(store)
    gateway.servers[0].default = "1.0-r2"  # --promote was killed
    with pytest.raises(RolloutFailed, match=r"version 1\.0-r2 is the default on a node"):
        again().abort(MODEL)
    assert gateway.canary is not None
    assert again().promote(MODEL) == "1.0-r2"
    assert [server.state for server in gateway.servers] == [("1.0-r2", ["1.0-r2"])] * 2


def test_archive_whose_name_only_looks_like_a_copy_stays(store: Path) -> None:
    write(store / "m@new", "2.0")
    with pytest.raises(ManagementError):
        rollouts(store, FakeServer(refused="POST")).run(MODEL, Registration(archive="m@new"))
    assert names(store) == {"m", "m@new"}


def test_rollout_beside_a_running_one_changes_nothing(store: Path) -> None:
    server, seen = FakeServer(), list[str]()

    def repeat(_: float) -> None:
        before = list(server.calls)
        for other in (
            partial(rollouts(store, server).run, new=Registration(batch_size=2)),
            rollouts(store, server).abort,
        ):
            with pytest.raises(RolloutFailed, match=r"^m: another rollout runs") as raised:
                other(MODEL)
            seen.append(raised.value.message)
        assert server.calls == before

    replace(rollouts(store, server), sleep=repeat).run(MODEL, Registration(batch_size=4))
    assert seen and server.state == ("1.0-r2", ["1.0-r2"])
    assert not list(store.glob(".*"))


def test_rollout_that_begins_while_another_ends_has_the_lock(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstat = os.fstat

    def late(number: int) -> os.stat_result:
        monkeypatch.setattr(os, "fstat", fstat)
        (store / ".rollout-m.lock").unlink()
        return fstat(number)

    monkeypatch.setattr(os, "fstat", late)
    with Journal.open(store, MODEL), pytest.raises(RolloutFailed), Journal.open(store, MODEL):
        pass


@pytest.mark.parametrize("end", ["promote", "abort"])
def test_canary_ends_without_a_model_store(end: str, store: Path) -> None:
    gateway, again = tried(store)
    said = list[str]()
    getattr(replace(again(), model_store=store / "none", report=said.append), end)(MODEL)
    assert {len(server.versions) for server in gateway.servers} == {1}
    assert said[0] == f"{store / 'none'}: not writable; this command cannot be repeated after a kill"


def test_archive_that_cannot_be_read_is_not_a_known_one(store: Path) -> None:
    (store / "broken.mar").write_bytes(b"no archive")
    for name in ("broken.mar", "none.mar"):
        assert archive_files.identify(store / name) == ""
        assert not Journal(store / "j", {"2.0": Entry(name, "")}).knows("2.0", store / name)
