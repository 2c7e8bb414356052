"""The process of a node: starts, watches, drains and ends TorchServe and Envoy.

Envoy (answers "starting") -> TorchServe -> every model READY -> serves
    Java dies or hangs, or Envoy dies repeatedly -> ends with an error; the container's supervisor starts it again
    SIGTERM -> /ready and the descriptions fail -> edges notice, no request is in flight -> TorchServe, Envoy end
"""

import os
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from deploy.command import say
from deploy.gateway.drain import wait_idle
from deploy.gateway.envoy.files import make_folder, write_resources
from deploy.gateway.envoy.process import Envoy, NoAnswer
from deploy.nodes.container import envoy as node_envoy
from deploy.nodes.container.envoy import LISTENER, READY, ROUTES_FILE, NodeStatus
from deploy.nodes.container.settings import NodeSettings
from deploy.nodes.run import ServerError, production
from deploy.nodes.run.lifecycle import start_node
from deploy.nodes.run.node import read_tokens
from deploy.nodes.run.processes import Ending
from torchserve_client.errors import ManagementError
from torchserve_client.payloads import Json

CHECK_S = 0.25  # seconds between two checks of both processes
HEALTH_S = 1.0  # seconds between two polls of the models
LAST_RESPONSE_S = 5.0  # seconds in which Envoy sends TorchServe's last responses after TorchServe has ended
# TorchServe hangs if it has not answered for this multiple of its models' longest responseTimeout; a busy one answers
# within that timeout.
SILENT = 2
# One thread handles thousands of requests a second, and leaves the cores to the model.
CONCURRENCY = ("--concurrency", "1")
# The output of the workers with their tracebacks, and the frontend's warnings (deploy/log4j2.xml).
LOGS = ("model_log.log", "ts_log.log")


def summarize_health(descriptions: Iterable[Json]) -> tuple[str, float]:
    """Return READY or the versions without READY workers, and the longest responseTimeout in seconds."""
    lacking = []
    response_timeout_s = 0.0
    for each in descriptions:
        ready = sum(worker["status"] == "READY" for worker in each["workers"])
        response_timeout_s = max(response_timeout_s, float(each.get("responseTimeout", 120)))
        if not ready:
            lacking.append(f"{each['modelName']} {each['modelVersion']}: no worker is READY")
    return "; ".join(lacking) or READY, response_timeout_s


class NodeProcess:
    def __init__(self, settings: NodeSettings) -> None:
        """Read the configuration and make the state folder; start nothing."""
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._local = settings.local()
        self._local.server.is_owned = True
        self._envoy = Envoy(settings.envoy, [LISTENER])
        self._document = node_envoy.bootstrap(settings, self._local.node())
        self._logs: subprocess.Popen[bytes] | None = None
        self._status: NodeStatus | None = None
        self._words, self._response_timeout_s = NodeStatus().words, 0.0
        self._answered_s = time.monotonic()  # when TorchServe last answered, on the monotonic clock
        self._is_up = False
        self._ending = Ending()
        self._is_stopping = self._ending.is_asked

    def run(self) -> None:
        """Serve until a SIGTERM or Ctrl-C, and end in order."""
        self._ending.install()
        try:
            with self._ending.interrupting():
                self._start()
            while not self._is_stopping.wait(CHECK_S):
                self._check()
            self._drain()
        except KeyboardInterrupt:
            pass
        finally:
            self._local.server.stop()
            self._envoy.stop(LAST_RESPONSE_S)
            if self._logs is not None:
                self._logs.terminate()
            say("node: ended")

    def _start(self) -> None:
        """Start Envoy, which reports that the node starts; then TorchServe, until all models are READY."""
        local, server = self._local, self._local.server
        # A container's log is the output of its process. Log files are rotated, which tail follows.
        words = ["tail", "--quiet", "--lines=0", "--follow=name", "--retry", f"--pid={os.getpid()}"]
        self._logs = subprocess.Popen([*words, *(str(server.logs / name) for name in LOGS)], stderr=subprocess.DEVNULL)
        make_folder(self._settings.envoy)
        self._publish(NodeStatus())
        self._keep_envoy()
        where = f"node: {self._settings.address}:{self._settings.port}"
        say(f"{where}: starting")
        models: list[tuple[str, str]] = []
        if server.settings.load_models or not server.settings.has_model_api:
            models = production.verify(local)
        else:
            start_node(local)
        self._poll(models)
        # A busy server may answer after seconds, so the polls have their own thread.
        threading.Thread(target=self._watch_health, args=(models,), name="health", daemon=True).start()
        self._check()
        self._is_up = True
        served = ", ".join(f"{name} {version}" for name, version in models) or "the registered models"
        say(f"{where}: serves {served}")

    def _check(self) -> None:
        self._keep_envoy()
        server = self._local.server
        if server.pid() is None:
            death = server.describe_death() or "TorchServe has ended"
            server.clean_up()
            raise ServerError(f"{self._local.title}: {death}")
        limit_s = SILENT * self._response_timeout_s
        if self._is_up and (silent_s := time.monotonic() - self._answered_s) > limit_s:
            raise ServerError(f"{self._local.title}: TorchServe has not answered for {silent_s:.0f} s")
        tokens = read_tokens(server.keys) if server.settings.has_tokens else {}
        if tokens is None:
            tokens = (self._status or NodeStatus()).tokens  # TorchServe is writing the key file
        with suppress(OSError):  # on a full disk the published status stays
            self._publish(NodeStatus(self._words, self._is_stopping.is_set(), tokens))

    def _keep_envoy(self) -> None:
        self._envoy.keep(self._document, *CONCURRENCY)

    def _publish(self, status: NodeStatus) -> None:
        if status != self._status:
            write_resources(self._settings.envoy / ROUTES_FILE, [node_envoy.make_routes(status)])
            self._status = status

    def _watch_health(self, models: list[tuple[str, str]]) -> None:
        """Poll every second; without a response the last health stays, since a busy node is ready."""
        while not self._is_stopping.wait(HEALTH_S):
            with suppress(ManagementError, LookupError, TypeError, ValueError):
                self._poll(models)

    def _poll(self, models: list[tuple[str, str]]) -> None:
        """Poll TorchServe for these models, or for all registered ones."""
        management = self._local.server.management
        versions = models or management.all_versions()
        descriptions = []
        for name, version in versions:
            try:
                descriptions.append(management.describe(name, version))
            except ManagementError as error:
                if error.status != 404:  # it was unregistered
                    raise
        self._words, self._response_timeout_s = summarize_health(descriptions)
        self._answered_s = time.monotonic()

    def _drain(self) -> None:
        say("node: drains")
        self._check()  # from now on the node reports that it drains; requests that still arrive are answered

        def count_in_flight() -> int:
            self._check()
            try:
                return self._envoy.statistic("cluster.inference.upstream_rq_active")
            except NoAnswer:
                return 1  # an unknown count is not idle: the next call asks this Envoy, or a restarted one

        limit_s, notice_s = self._response_timeout_s, self._settings.notice_s
        wait_idle(count_in_flight, lambda line: say(f"node: {line}"), notice_s=notice_s, limit_s=limit_s)
