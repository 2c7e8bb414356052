"""The process of a node: starts TorchServe and Envoy, keeps them, drains, ends them in order.

Envoy (says "starting") -> TorchServe -> every model READY -> serves
    Java dies, or Envoy dies again and again -> ends with an error; whoever started it starts it anew
    SIGTERM, or the mark of `drain`          -> drains; SIGTERM ends TorchServe then, and Envoy after it
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

from deploy.container import envoy as node_envoy
from deploy.container.drain import DRAINED, DRAINING, MARK, SERVING, STARTING, Drain, State
from deploy.container.envoy import INFERENCE, LISTENER, MANAGEMENT, METRICS, ROUTES_FILE, View
from deploy.container.health import Watch, ask
from deploy.container.logs import FILES, Follow
from deploy.container.settings import NodeSettings
from deploy.gateway.envoy import admin
from deploy.gateway.envoy.clusters import Tokens
from deploy.gateway.envoy.files import prepare, put, tokens_of
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.supervisor import KeptEnvoy
from deploy.run import configured, production
from deploy.run.machine import Local
from deploy.run.running import run_node, supervise
from deploy.run.server import ServerError
from deploy.run.waits import Waits

# Seconds between two looks at both processes; a SIGTERM is seen at once.
LOOK_S = 0.25
# Seconds until TorchServe's answers are through Envoy once TorchServe itself is gone.
LAST_ANSWER_S = 5.0
# One thread carries thousands of requests a second, and leaves the cores to the model.
CONCURRENCY = ("--concurrency", "1")


class NodeProcess:
    """TorchServe and Envoy of one run folder."""

    def __init__(self, settings: NodeSettings) -> None:
        """Describe them; starts nothing.

        Raises:
            InvalidConfig, ServerError, OSError: the configuration or the run folder is not as it should be.
        """
        settings.run.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._local = settings.local()
        self._envoy = Envoy(settings.envoy, [LISTENER])
        urls = self._local.node()
        document = node_envoy.bootstrap(
            settings, {INFERENCE: urls.inference, MANAGEMENT: urls.management, METRICS: urls.metrics}
        )
        self._kept = KeptEnvoy(self._envoy, lambda: self._envoy.start_on(document, *CONCURRENCY))
        self._view = View()
        self._wanted: list[tuple[str, str]] = []
        self._watch = Watch(lambda: ask(self._local.server.management, self._wanted))
        self._logs = Follow([self._local.server.logs / name for name in FILES], sys.stdout.buffer)
        self._drain: Drain | None = None
        self._phase = STARTING
        self._in_flight = 0

    def run(self) -> None:
        """Serve until a SIGTERM or Ctrl-C, and end in order.

        Raises:
            ServerError, GatewayFailed: something did not come up, or has died.
        """
        is_up = False
        try:
            with _interrupted():
                self._begin()
                self._start()
                is_up = True
            supervise(self._local, self._leave, look=self._look, every_s=LOOK_S)
        except KeyboardInterrupt:
            if is_up:
                raise
        finally:
            self._end()

    def _begin(self) -> None:
        (self._settings.run / MARK).unlink(missing_ok=True)
        self._logs.start()
        self._say(STARTING)
        prepare(self._settings.envoy)
        self._show(View())
        self._kept.start()
        print(f"node: {self._settings.address}:{self._settings.port}: starting", flush=True)

    def _start(self) -> None:
        """Start TorchServe, and wait until all that its configuration names is READY."""
        local, server = self._local, self._local.server
        with Waits() as waits:
            if server.settings.load_models or not server.settings.has_model_api:
                named = production.named(server.settings, server.directory / server.settings.model_store)
                self._wanted = [(each.name, each.version) for each in named]
                configured.prove(local, waits)
            else:
                run_node(local, waits)
        self._watch.start()
        self._say(SERVING)
        self._look()
        served = ", ".join(f"{name} {version}" for name, version in self._wanted) or "what is registered"
        print(f"node: {self._settings.address}:{self._settings.port}: serves {served}", flush=True)

    def _look(self) -> None:
        """Do what is due, again and again.

        Raises:
            GatewayFailed: Envoy has died again and again.
        """
        self._kept.keep()
        if self._drain is None and (self._settings.run / MARK).exists():
            self._begin_drain()
        health = self._watch.health
        tokens = tokens_of(self._local.server.keys) if self._local.server.settings.has_tokens else Tokens()
        # Where the file of keys is being written anew, the last ones stand.
        view = View(health.is_ready, health.words, self._drain is not None, tokens or self._view.tokens)
        if view != self._view:
            self._show(view)
        if self._drain is not None and self._phase != DRAINED:
            self._follow(self._drain, health.response_timeout_s)

    def _begin_drain(self) -> None:
        print("node: drains", flush=True)
        self._show(View(self._view.is_ready, self._view.words, True, self._view.tokens))
        self._drain = Drain(time.monotonic(), self._settings.notice_s)
        self._say(DRAINING)

    def _follow(self, drain: Drain, limit_s: float) -> None:
        try:
            in_flight = self._envoy.statistic(f"cluster.{INFERENCE}.upstream_rq_active")
            arrived = self._envoy.statistic(f"cluster.{INFERENCE}.upstream_rq_total")
        except admin.NoAnswer:
            # It has died, and is started anew: what it had is answered elsewhere.
            return
        if drain.is_over(time.monotonic(), in_flight=in_flight, arrived=arrived, limit_s=limit_s):
            said = f"{in_flight} requests have no answer after {limit_s:g} s" if in_flight else "the last answer is out"
            print(f"node: {said}", flush=True)
            self._say(DRAINED, in_flight)
        elif in_flight != self._in_flight:
            self._say(DRAINING, in_flight)

    def _leave(self, local: Local) -> float | None:
        """Drain; what `supervise` calls before it stops TorchServe, and how long that may take then."""
        if self._drain is None:
            self._begin_drain()
        while self._phase != DRAINED:
            time.sleep(LOOK_S)
            self._look()
            if local.server.pid() is None:
                raise ServerError(f"{local.title}: {local.server.died() or 'has died'}")
        # What had no answer in time is not waited for once more.
        return 0.0 if self._in_flight else None

    def _end(self) -> None:
        self._watch.stop()
        # Where it did not come up, or died: nothing that it has is to be waited for.
        with contextlib.suppress(ServerError):
            self._local.server.stop()
        self._envoy.stop(LAST_ANSWER_S)
        self._logs.stop()
        print("node: ended", flush=True)

    def _say(self, phase: str, in_flight: int = 0) -> None:
        self._phase, self._in_flight = phase, in_flight
        State.of_this(phase, in_flight).write(self._settings.run)

    def _show(self, view: View) -> None:
        self._view = view
        put(self._settings.envoy / ROUTES_FILE, [node_envoy.routes(view)])


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Let a SIGTERM end what a node waits for while it starts, as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
