"""A rollout on every node, and canaries: a new version that gets a share of the traffic before it gets all.

    run:     registered on all nodes -> READY on all -> on each: default, the old one drained, unregistered
             with a gateway: default on all -> the old one withdrawn -> on each: drained, unregistered
    canary:  registered on all nodes -> READY on all -> the gateway sends it a share
    promote: default on all -> the gateway's share ends, the old one withdrawn -> on each: drained, unregistered
    abort:   the gateway's share ends, the new one withdrawn -> on each: drained, unregistered

Until a version is READY everywhere nothing else is changed; where one node cannot have it, all are as they were.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from torchserve_client.errors import ClientError, ManagementError, NodesFailed, RolloutFailed
from torchserve_client.gateway import Gateway
from torchserve_client.management import POLL_S
from torchserve_client.rollout import New, Rollout, Wanted
from torchserve_client.withdrawal import MOMENT_S, SEEN_S, Withdrawal


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Replaces versions of the models of several servers.

    Attributes:
        nodes: a node's name -> the rollout of its own; all of one model store.
        gateway: the gateway in front of them; None where there is none, and a canary cannot be.
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
        if self.gateway is None:
            self._on_each(lambda name, rollout: rollout.replace(model, new.version, olds[name]))
        else:
            self._on_each(lambda _, rollout: rollout.switch(model, new.version))
            self._retire(model, olds)
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
        retired = {name: old for name, old in olds.items() if str(old["modelVersion"]) != version}
        self._retire(model, retired)
        self._clean(retired)
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

        with self._withdrawn(model, [version], self._response_timeout_s(model, version)):
            self._on_each(retire)
        self._clean(described)
        return version

    def _retire(self, model: str, retired: Mapping[str, dict[str, Any]]) -> None:
        """Unregister versions that are nobody's default, once they have answered everything.

        What names one of them would go on coming, hence they are taken off the gateway's routes first.

        Args:
            model: the model's name.
            retired: a node's name -> the description of the version that it is to lose; without those that lose none.
        """

        def retire(name: str, rollout: Rollout) -> None:
            if name in retired:
                rollout.retire(model, retired[name])

        versions = sorted({str(old["modelVersion"]) for old in retired.values()})
        timeout_s = max((float(old["responseTimeout"]) for old in retired.values()), default=0.0)
        with self._withdrawn(model, versions, timeout_s):
            self._on_each(retire)

    def _withdrawn(self, model: str, versions: list[str], timeout_s: float) -> AbstractContextManager[None]:
        gateway = self.gateway if versions else None
        return Withdrawal(gateway, model, versions, timeout_s, self._say, self.sleep).during()

    def _response_timeout_s(self, model: str, version: str) -> float:
        """A version's longest responseTimeout, in seconds; a node that does not say it has none."""
        longest = 0.0
        for rollout in self.nodes.values():
            with suppress(ClientError):
                longest = max(longest, float(rollout.management.describe(model, version)["responseTimeout"]))
        return longest

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
