"""The process of a node: starts TorchServe and Envoy, keeps them, drains, ends them in order.

Envoy (answers "starting") -> TorchServe -> every model READY -> serves
    Java dies or hangs, or Envoy dies again and again -> ends with an error; what started it starts it again
    SIGTERM -> /ready and the descriptions fail -> edges have seen it, nothing is in flight -> TorchServe, Envoy end
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from deploy.container import envoy as node_envoy
from deploy.container.envoy import LISTENER, READY, ROUTES_FILE, View
from deploy.container.settings import NodeSettings
from deploy.gateway.drain import wait_idle
from deploy.gateway.envoy.files import prepare, put
from deploy.gateway.envoy.process import Envoy, NoAnswer
from deploy.gateway.management import tokens_of
from deploy.run import production
from deploy.run.nodes import start_node
from deploy.run.server import ServerError
from torchserve_client.errors import ManagementError

# Seconds between two looks at both processes, and between two at the models.
LOOK_S, HEALTH_S = 0.25, 1.0
# Seconds until TorchServe's answers are through Envoy once TorchServe itself is gone.
LAST_ANSWER_S = 5.0
# A TorchServe that has answered nothing for so many times its models' longest responseTimeout hangs: a busy one answers
# within one.
SILENT = 2
# One thread carries thousands of requests a second, and leaves the cores to the model.
CONCURRENCY = ("--concurrency", "1")
# What the workers print, their tracebacks too, and the frontend's warnings (deploy/log4j2.xml).
LOGS = ("model_log.log", "ts_log.log")


def health(described: Iterable[Mapping[str, Any]]) -> tuple[str, float]:
    """Return which models have no READY worker, or READY, and the longest responseTimeout in seconds.

    Args:
        described: what TorchServe answers of each version.
    """
    lacking = []
    response_timeout_s = 0.0
    for each in described:
        ready = sum(worker["status"] == "READY" for worker in each["workers"])
        response_timeout_s = max(response_timeout_s, float(each.get("responseTimeout", 120)))
        if not ready:
            lacking.append(f"{each['modelName']} {each['modelVersion']}: no worker is READY")
    return "; ".join(lacking) or READY, response_timeout_s


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
        self._document = node_envoy.bootstrap(settings, self._local.node())
        self._logs: subprocess.Popen[bytes] | None = None
        self._view: View | None = None
        self._words, self._response_timeout_s = View().words, 0.0
        self._heard_s = time.monotonic()
        self._is_up = False
        self._is_told = threading.Event()

    def run(self) -> None:
        """Serve until a SIGTERM or Ctrl-C, and end in order.

        Raises:
            ServerError, ManagementError, EnvoyError: something did not come up, or has died.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)
        try:
            self._start()
            while not self._is_told.wait(LOOK_S):
                self._look()
            self._drain()
        except KeyboardInterrupt:
            pass
        finally:
            self._local.server.stop()
            self._envoy.stop(LAST_ANSWER_S)
            if self._logs is not None:
                self._logs.terminate()
            print("node: ended", flush=True)

    def _told(self, *_: object) -> None:
        self._is_told.set()
        if not self._is_up:
            raise KeyboardInterrupt

    def _start(self) -> None:
        """Start Envoy, which answers that the node starts; then TorchServe, until all that it is to serve is READY."""
        local, server = self._local, self._local.server
        # Containers' logs are what their process prints. Files are put aside as they grow, which tail follows.
        words = ["tail", "--quiet", "--lines=0", "--follow=name", "--retry", f"--pid={os.getpid()}"]
        self._logs = subprocess.Popen([*words, *(str(server.logs / name) for name in LOGS)], stderr=subprocess.DEVNULL)
        prepare(self._settings.envoy)
        self._show(View())
        self._keep_envoy()
        where = f"node: {self._settings.address}:{self._settings.port}"
        print(f"{where}: starting", flush=True)
        models: list[tuple[str, str]] = []
        if server.settings.load_models or not server.settings.has_model_api:
            models = production.prove(local)
        else:
            start_node(local)
        self._ask(models)
        # An answer may take seconds on a busy server, and holds up nothing but the thread.
        threading.Thread(target=self._watch_health, args=(models,), name="health", daemon=True).start()
        self._look()
        self._is_up = True
        served = ", ".join(f"{name} {version}" for name, version in models) or "what is registered"
        print(f"{where}: serves {served}", flush=True)

    def _look(self) -> None:
        """Do what is due, again and again.

        Raises:
            EnvoyError: Envoy has died again and again.
            ServerError: Java has died, or hangs.
        """
        self._keep_envoy()
        server = self._local.server
        if server.pid() is None:
            death = server.died() or "TorchServe has ended"
            server.forget()
            raise ServerError(f"{self._local.title}: {death}")
        limit_s = SILENT * self._response_timeout_s
        if self._is_up and (silent_s := time.monotonic() - self._heard_s) > limit_s:
            raise ServerError(f"{self._local.title}: TorchServe has answered nothing for {silent_s:.0f} s")
        tokens = tokens_of(server.keys) if server.settings.has_tokens else {}
        if tokens is None:
            # The file of keys is being written anew.
            tokens = (self._view or View()).tokens
        # On a full disk the node shows what it showed before.
        with suppress(OSError):
            self._show(View(self._words, self._is_told.is_set(), tokens))

    def _keep_envoy(self) -> None:
        self._envoy.keep(self._document, *CONCURRENCY)

    def _show(self, view: View) -> None:
        if view != self._view:
            put(self._settings.envoy / ROUTES_FILE, [node_envoy.routes(view)])
            self._view = view

    def _watch_health(self, models: list[tuple[str, str]]) -> None:
        """Ask every second; where no answer comes, what was known stays: a busy node is a ready one."""
        while not self._is_told.wait(HEALTH_S):
            with suppress(ManagementError, LookupError, TypeError, ValueError):
                self._ask(models)

    def _ask(self, models: list[tuple[str, str]]) -> None:
        """Ask TorchServe for these models, or whatever is registered."""
        management = self._local.server.management
        versions = models or management.all_versions()
        described = []
        for name, version in versions:
            try:
                described.append(management.describe(name, version))
            except ManagementError as error:
                # It is not registered any more.
                if error.status != 404:
                    raise
        self._words, self._response_timeout_s = health(described)
        self._heard_s = time.monotonic()

    def _drain(self) -> None:
        print("node: drains", flush=True)
        # From now on the node shows that it drains; what still comes is answered.
        self._look()

        def in_flight() -> int:
            self._look()
            try:
                return self._envoy.statistic("cluster.inference.upstream_rq_active")
            except NoAnswer:
                # What is not known is not answered: Envoy is asked again, or the one that takes its place.
                return 1

        limit_s, notice_s = self._response_timeout_s, self._settings.notice_s
        wait_idle(in_flight, lambda words: print(f"node: {words}", flush=True), notice_s=notice_s, limit_s=limit_s)
