"""A rollout on every node, and canaries: a new version that gets a share of the traffic before it gets all.

    run:     registered on all nodes -> READY on all -> on each: default, the old one drained, unregistered
    canary:  registered on all nodes -> READY on all -> the gateway sends it a share
    promote: default on all -> the gateway's share ends -> on each: the old one drained, unregistered
    abort:   the gateway's share ends -> on each: the new one drained, unregistered

Until a version is READY everywhere nothing else is changed; where one node cannot have it, all are as they were.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchserve_client.errors import ClientError, ManagementError, NodesFailed, RolloutFailed
from torchserve_client.gateway import Gateway
from torchserve_client.management import POLL_S
from torchserve_client.rollout import New, Rollout, Wanted

# Seconds in which the gateway sees a version that was registered; it looks every two.
SEEN_S = 20.0
# Seconds after a canary has ended until nothing new comes to it: Envoy reads its files anew within ms.
MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Replaces versions of the models of several servers.

    Attributes:
        nodes: a node's name -> the rollout of its own; all of one model store.
        gateway: the gateway in front of them; None where no canary is meant.
        sleep: waits so many seconds; a test brings one that does not.
    """

    nodes: Mapping[str, Rollout]
    gateway: Gateway | None = None
    sleep: Callable[[float], None] = time.sleep

    def run(self, model: str, wanted: Wanted) -> str:
        """Replace the default version on every node; returns the one that serves now.

        Raises:
            RolloutFailed, NodesFailed: it says what serves where.
        """
        if self.gateway is not None and self.gateway.canary(model) is not None:
            raise RolloutFailed(f"{model} has a canary: --promote or --abort it first")
        olds = self._defaults(model)
        new = self._register(model, wanted, olds)
        self._on_each(lambda name, rollout: rollout.replace(model, new.version, olds[name]))
        self._clean(olds)
        return new.version

    def try_canary(self, model: str, wanted: Wanted, percent: float, header: tuple[str, str] | None) -> str:
        """Register a version beside the one that serves, and send it a share; or change the share of the one there is.

        Args:
            model: the model's name.
            wanted: how it is to be registered; nothing to change the share alone.
            percent: its share of what names no version, 0 to 100.
            header: name and value; requests that carry it go there, whatever the share.

        Returns:
            The version that gets the share.

        Raises:
            RolloutFailed, NodesFailed, ManagementError: nothing has changed.
        """
        gateway = self._gateway()
        canary = gateway.canary(model)
        if canary is not None:
            if wanted != Wanted():
                raise RolloutFailed(f"{model} has a canary, version {canary['version']}: --promote or --abort it first")
            kept = canary["header"]
            gateway.set_canary(model, canary["version"], percent, header or ((kept[0], kept[1]) if kept else None))
            self._say(f"{model}: version {canary['version']} gets {percent:g} %")
            return str(canary["version"])
        if wanted == Wanted():
            raise RolloutFailed(f"{model} has no canary: say what is to be tried, --batch-size, --url, ...")
        olds = self._defaults(model)
        new = self._register(model, wanted, olds)
        try:
            self._wait_seen(gateway, model, new.version, percent, header)
        except BaseException:
            self._take_back(model, new, list(self.nodes))
            raise
        self._say(f"{model}: version {new.version} gets {percent:g} %; --promote or --abort ends it")
        return new.version

    def promote(self, model: str) -> str:
        """Give a canary everything, and retire what served; returns the version that serves now.

        Raises:
            RolloutFailed: there is no canary, or a node does not have it.
            NodesFailed: it says which nodes did not take part.
        """
        gateway = self._gateway()
        version = self._canary(model)
        olds = self._defaults(model)
        if lacking := [name for name, each in self.nodes.items() if version not in each.management.versions(model)]:
            raise RolloutFailed(f"{model}: {', '.join(lacking)} has no version {version}; nothing has changed")
        self._on_each(lambda _, rollout: rollout.management.set_default(model, version))
        self._say(f"{model}: version {version} is the default")
        gateway.end_canary(model)
        self.sleep(MOMENT_S)

        def retire(name: str, rollout: Rollout) -> None:
            if str(olds[name]["modelVersion"]) != version:
                rollout.retire(model, olds[name])

        self._on_each(retire)
        self._clean({name: old for name, old in olds.items() if str(old["modelVersion"]) != version})
        return version

    def abort(self, model: str) -> str:
        """Send a canary nothing more, and retire it; returns the version that was tried.

        Raises:
            RolloutFailed: there is no canary.
            NodesFailed: it says where it could not be retired.
        """
        gateway = self._gateway()
        version = self._canary(model)
        gateway.end_canary(model)
        self._say(f"{model}: version {version} gets nothing more")
        self.sleep(MOMENT_S)
        described: dict[str, dict[str, Any]] = {}

        def retire(name: str, rollout: Rollout) -> None:
            if version in rollout.management.versions(model):
                described[name] = rollout.management.describe(model, version)
                rollout.retire(model, described[name])

        self._on_each(retire)
        self._clean(described)
        return version

    def _defaults(self, model: str) -> dict[str, dict[str, Any]]:
        """The description of what serves, of each node; all nodes must answer before anything is changed."""
        return self._on_each(lambda _, rollout: rollout.management.describe(model))

    def _register(self, model: str, wanted: Wanted, olds: Mapping[str, dict[str, Any]]) -> New:
        taken = self._on_each(lambda _, rollout: rollout.management.versions(model))
        first = next(iter(self.nodes))
        every = sorted({version for versions in taken.values() for version in versions})
        new = self.nodes[first].prepare(model, olds[first], wanted, every)
        registered: list[str] = []
        try:
            for name, rollout in self.nodes.items():
                rollout.register(model, new, olds[name], wanted)
                registered.append(name)
        except BaseException as error:
            self._take_back(model, new, registered)
            if isinstance(error, ClientError) and len(self.nodes) > 1:
                failed = list(self.nodes)[len(registered)]
                raise RolloutFailed(f"{failed}: {error.message}; all nodes are as they were") from error
            raise
        return new

    def _take_back(self, model: str, new: New, names: list[str]) -> None:
        for name in names:
            try:
                self.nodes[name].management.unregister(model, new.version)
            except ManagementError as error:
                self._say(f"{name}: {model}: version {new.version} could not be unregistered: {error.message}")
        new.discard()

    def _wait_seen(
        self, gateway: Gateway, model: str, version: str, percent: float, header: tuple[str, str] | None
    ) -> None:
        deadline = time.monotonic() + SEEN_S
        while True:
            try:
                gateway.set_canary(model, version, percent, header)
                return
            except ManagementError as error:
                if error.status != 404 or time.monotonic() > deadline:
                    raise
            self.sleep(POLL_S)

    def _canary(self, model: str) -> str:
        canary = self._gateway().canary(model)
        if canary is None:
            raise RolloutFailed(f"{model} has no canary")
        return str(canary["version"])

    def _gateway(self) -> Gateway:
        if self.gateway is None:
            raise RolloutFailed("a canary needs the gateway: --gateway URL")
        return self.gateway

    def _clean(self, retired: Mapping[str, dict[str, Any]]) -> None:
        """Remove the archives of what was retired, when no node serves from them any more."""
        for name, old in retired.items():
            self.nodes[name].clean(old)

    def _on_each(self, call: Callable[[str, Rollout], Any]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        errors: dict[str, ClientError] = {}
        for name, rollout in self.nodes.items():
            try:
                results[name] = call(name, rollout)
            except ClientError as error:
                if len(self.nodes) == 1:
                    raise
                errors[name] = error
        if errors:
            raise NodesFailed(errors, list(results))
        return results

    def _say(self, line: str) -> None:
        next(iter(self.nodes.values())).say(line)
