"""Several processes of one archive behind one port: a new connection goes to the process that has the fewest.

HTTP: accepted here -> the connection itself is sent to a process
gRPC: accepted here -> its bytes are relayed to a process, since gRPC's library takes no connection
a process ends by itself -> another starts; SIGHUP -> each is replaced when its successor is ready; SIGTERM -> all drain
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import count
from math import ceil
from typing import Any

from deploy.command import say
from deploy.hosts.serve.children import FIRST_PAUSE_S, Child, Relay, lengthen, write_list
from deploy.hosts.serve.doors import (
    ALIVE,
    BACKLOG,
    ENDED,
    GIVEN,
    LAST,
    LEAVE,
    MEMBER,
    MESSAGE_BYTES,
    SHED,
    TAKEN,
    Member,
    drain_backlog,
)
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.process import Process
from deploy.hosts.serve.shares import choose_count, own_cores, usable_cores
from deploy.places import HOME, PLACE, ROOT

BALANCED_S = 1.0  # seconds between two looks at the processes: whether they answer, and their connections
STEADY_S = 60.0  # seconds after which a process had a good start


class Supervisor:
    def __init__(self, words: list[str], processes: int | None, limits: HostLimits, process: Process) -> None:
        """`words` are the command line of each process; None processes are measured."""
        self._words, self._limits, self._process = words, limits, process
        self._count, self._cores = processes, usable_cores()
        self._children: list[Child] = []
        self._is_ending = False
        self._tasks = set[asyncio.Future[Any]]()
        self._doors: dict[socket.socket, Callable[[], None]] = {}
        self._replacing = asyncio.Lock()

    async def run(
        self, http: socket.socket, grpc: socket.socket | None, on_ready: Callable[[dict[str, str]], None]
    ) -> int:
        """Serve until a signal; `on_ready` gets the rows to print. Return the exit code."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._doors = {http: lambda: self._give(http), **({grpc: lambda: self._relay(grpc)} if grpc else {})}
        first = await self._start(1)
        if first is not None and self._count is None:
            told = first.ready.result()
            self._count = choose_count(len(self._cores), told["python_s"], told["cores_s"])
            if self._count != 1:  # it has all cores
                first.process.terminate()
                await first.process.wait()
                self._forget(first)
                first = await self._start(1)
        if first is None:
            return 1  # it has written its line
        told = first.ready.result()
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        self._process.drain_s = self._limits.drain_s
        self._process.stop = lambda: loop.call_soon_threadsafe(asked.set)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._replace()))
        self._spawn(self._watch(first))
        for each in self._doors:
            each.setblocking(False)
            each.listen(BACKLOG)
        rows = {name: value for name, value in told.items() if isinstance(value, str)}
        on_ready({**rows, "Processes": str(self._count)})
        for number in range(2, (self._count or 1) + 1):
            self._spawn(self._revive(number, 0.0))
        balancing = self._spawn(self._balance())
        await asked.wait()
        balancing.cancel()
        await self._end()
        return 0

    def _threads(self) -> tuple[str, ...]:
        of_each = max(1, len(self._cores) // (self._count or 1))
        return () if self._count in (None, 1) or "--threads" in self._words else ("--threads", str(of_each))

    async def _start(self, number: int) -> Child | None:
        """Start a process, and return it when it serves; None if it has ended before."""
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        folder = self._process.folder
        cores, path = own_cores(self._cores, number, self._count or 1), f"{ROOT}{os.pathsep}{ROOT.parent}"
        member = Member(number, theirs.fileno(), cores, str(folder), self._count is None)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "torchserve_batching", "serve", *self._words, *self._threads()),
            env={**os.environ, PLACE: str(HOME), MEMBER: json.dumps(member), "PYTHONPATH": path},
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # a signal of the terminal is the supervisor's alone
        )
        theirs.close()
        loop = asyncio.get_running_loop()
        child = Child(number, process, own, loop.create_future(), member.rpc)
        self._children.append(child)
        self._process.children.append(process.pid)
        if self._is_ending:
            process.terminate()  # the others have their signals
        loop.add_reader(own, self._hear, child)
        ended = self._spawn(process.wait())
        await asyncio.wait({ended, child.ready}, return_when=asyncio.FIRST_COMPLETED)
        if child.ready.done() and not ended.done():
            child.is_serving = True
            self._accept()
            return child
        self._forget(child)
        return None

    def _hear(self, child: Child) -> None:
        try:
            while message := child.channel.recv(MESSAGE_BYTES):
                if message == TAKEN:
                    child.untaken.popleft().close()
                elif message == ALIVE:
                    child.silent = 0
                elif message == ENDED:
                    child.connections -= 1
                else:
                    child.ready.set_result(json.loads(message))
        except BlockingIOError:
            return
        except ConnectionResetError:
            pass  # it was killed before it had read all messages
        asyncio.get_running_loop().remove_reader(child.channel)

    async def _watch(self, child: Child) -> None:
        """Start another process for one that ends by itself."""
        began_s = asyncio.get_running_loop().time()
        await child.process.wait()
        was_serving = child.is_serving
        self._forget(child)
        if was_serving and not self._is_ending:
            say(f"serve: process {child.number} has ended ({child.end}); another starts", sys.stderr)
            is_steady = asyncio.get_running_loop().time() - began_s > STEADY_S
            await self._revive(child.number, 0.0 if is_steady else FIRST_PAUSE_S)

    async def _revive(self, number: int, pause_s: float) -> None:
        """Start a process until it serves."""
        while not self._is_ending:
            await asyncio.sleep(pause_s)
            if (child := await self._start(number)) is not None:
                self._spawn(self._watch(child))
                break
            pause_s = lengthen(pause_s)

    async def _replace(self) -> None:
        """Replace each process when its successor serves, one after the other."""
        async with self._replacing:
            for old in [each for each in self._children if each.is_serving]:
                if not old.is_serving:
                    continue  # it has ended meanwhile, and its successor has the new archive
                taken, step = {each.number for each in self._children}, self._count or 1
                # Of the same cores.
                of_same = count((old.number - 1) % step + 1, step)
                new = await self._start(next(each for each in of_same if each not in taken))
                if new is None:
                    if not self._is_ending:
                        say("serve: the new archive does not load; the processes of the old one go on", sys.stderr)
                    break
                self._spawn(self._watch(new))
                old.is_serving = False
                with suppress(OSError):
                    old.channel.send(LEAVE)
                # Memory for one more process is enough; a client may keep its connection for long.
                with suppress(TimeoutError):
                    await asyncio.wait_for(old.process.wait(), 2 * self._limits.drain_s)

    def _forget(self, child: Child) -> None:
        if child in self._children:
            self._children.remove(child)
            self._process.children.remove(child.process.pid)
            child.is_serving = False
            while child.untaken:
                self._send(child.untaken.popleft())
            asyncio.get_running_loop().remove_reader(child.channel)
            child.channel.close()
        child.is_serving = False
        self._accept()

    def _accept(self) -> None:
        """Accept connections while a process serves."""
        loop, serves = asyncio.get_running_loop(), write_list(self._process.folder, self._children)
        for listener, accept in self._doors.items():
            if serves:
                loop.add_reader(listener, accept)
            else:
                loop.remove_reader(listener)

    def _choose(self) -> list[Child]:
        """Return the processes that serve, the one with the fewest connections first, now and before."""
        serving = (each for each in self._children if each.is_serving)
        return sorted(serving, key=lambda each: each.order)

    async def _balance(self) -> None:
        """Kill a process that does not answer, and let others end surplus connections with their next responses."""
        most = ceil(self._limits.heartbeat_s / BALANCED_S)
        while True:
            await asyncio.sleep(BALANCED_S)
            for child in self._choose():
                if not child.ask(most):
                    silent = f"process {child.number} has not answered for {self._limits.heartbeat_s:g} s"
                    say(f"serve: {silent}, and is killed", sys.stderr)
            serving = self._choose()
            mean = ceil(sum(each.connections for each in serving) / max(1, len(serving)))
            least = min((each.connections for each in serving), default=0)
            for child in serving:
                extra = child.connections - mean if least < mean else 0
                if extra > 0 or child.was_told:
                    with suppress(OSError):
                        child.channel.send(SHED + b"%d" % max(0, extra))
                    child.was_told = extra > 0

    def _give(self, listener: socket.socket) -> None:
        """Accept connections, and send each to a process."""
        with suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                self._send(listener.accept()[0])

    def _send(self, connection: socket.socket) -> None:
        for child in self._choose():
            with suppress(OSError):  # it ends, or does not read
                socket.send_fds(child.channel, [GIVEN], [connection.fileno()])
                child.count_connection()
                # Until it has come: a process that is killed may still accept messages.
                child.untaken.append(connection)
                return
        connection.close()

    def _relay(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                connection, _ = listener.accept()
                for child in self._choose()[:1]:
                    child.count_connection()
                    self._spawn(self._join(child, connection))

    async def _join(self, child: Child, connection: socket.socket) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def end() -> None:
            if not ended.is_set():
                ended.set()
                child.connections -= 1

        _, outer = await loop.connect_accepted_socket(lambda: Relay(end), connection)
        try:
            _, inner = await loop.create_unix_connection(lambda: Relay(end), str(child.rpc))
        except OSError:
            outer.transport.abort()
        else:
            outer.join(inner)

    async def _end(self) -> None:
        """Let all processes drain; their connections come until the listeners have none."""
        self._is_ending = True
        ends_s = asyncio.get_running_loop().time() + self._limits.drain_s
        for child in self._children:
            with suppress(ProcessLookupError):
                child.process.terminate()
        await asyncio.sleep(min(self._limits.notice_s, self._limits.drain_s))
        for listener in self._doors:
            await drain_backlog(listener, ends_s, lambda: asyncio.sleep(0.001))
        doors, self._doors = self._doors, {}
        for listener in doors:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for child in self._children:
            with suppress(OSError):
                child.channel.send(LAST)
        for child in [*self._children]:
            await child.process.wait()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
