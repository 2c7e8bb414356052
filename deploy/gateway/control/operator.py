"""What operators ask and decide, on the control port alone: nodes, draining, canaries, withdrawals.

GET /control/nodes; PUT /control/nodes/NAME; GET, PUT, DELETE /control/canaries/MODEL; GET, PUT /control/models/MODEL

A model, or a version of it, is withdrawn from the routes while it is still on its nodes, to be unregistered then:
TorchServe answers nothing of a batch that is being filled when its model is unregistered. What is withdrawn gets no new
request; what is in flight for it comes down to none.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from deploy.gateway.control import description
from deploy.gateway.control.errors import BadRequest, NotFound
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.envoy.clusters import cluster
from deploy.gateway.envoy.process import Traffic
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, Model
from handlers.config import SETTINGS


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class DrainingRequest:
    """Whether a node is to be taken out."""

    draining: bool


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WithdrawalRequest:
    """Whether a version is to be taken off the routes; None for every version that is registered now."""

    withdrawn: bool
    version: str | None = None


class Operator:
    """The handlers of the routes."""

    def __init__(self, gateway: Gateway) -> None:
        """Decide over the gateway's nodes and models."""
        self._gateway = gateway
        self._decisions = gateway.decisions

    def add_routes(self, app: web.Application) -> None:
        """Register them."""
        app.router.add_get("/control/nodes", self.nodes)
        app.router.add_put("/control/nodes/{node}", self.drain)
        app.router.add_get("/control/canaries", self.canaries)
        app.router.add_get("/control/canaries/{model}", self.canary)
        app.router.add_put("/control/canaries/{model}", self.try_canary)
        app.router.add_delete("/control/canaries/{model}", self.end_canary)
        app.router.add_get("/control/models", self.models)
        app.router.add_get("/control/models/{model}", self.model)
        app.router.add_put("/control/models/{model}", self.withdraw)

    async def nodes(self, _request: web.Request) -> web.Response:
        """Answer every node: whether it answers, is draining, gets requests, and what it has in flight."""
        traffic = await self._gateway.traffic()
        return web.json_response([self._node(name, traffic) for name in self._gateway.fleet.nodes])

    async def drain(self, request: web.Request) -> web.Response:
        """Take a node out, or let it get requests again."""
        name = request.match_info["node"]
        if name not in self._gateway.fleet.nodes:
            raise NotFound(f"no node {name[:100]}; known are {', '.join(self._gateway.fleet.nodes) or 'none'}")
        asked: DrainingRequest = await _read(request, DrainingRequest)
        draining = self._decisions.now.draining
        self._decisions.decide(draining=draining | {name} if asked.draining else draining - {name})
        await self._gateway.write()
        return web.json_response(self._node(name, await self._gateway.traffic()))

    async def canaries(self, _request: web.Request) -> web.Response:
        """Answer every canary, by its model."""
        return web.json_response({model: asdict(canary) for model, canary in self._gateway.canaries().items()})

    async def canary(self, request: web.Request) -> web.Response:
        """Answer a model's canary."""
        model = request.match_info["model"]
        canary = self._gateway.canaries().get(model)
        if canary is None:
            raise NotFound(f"no canary of {model[:100]}")
        return web.json_response(asdict(canary))

    async def try_canary(self, request: web.Request) -> web.Response:
        """Give a version a share of a model's traffic."""
        name = request.match_info["model"]
        asked: Canary = await _read(request, Canary)
        model, version = description.find(self._gateway.fleet, name, asked.version)
        if version.version == model.default:
            raise BadRequest(f"version {version.version} of {name} is its default version: nothing to try")
        canary = replace(asked, version=version.version)
        self._decisions.decide(canaries={**self._decisions.now.canaries, name: canary})
        await self._gateway.write()
        return web.json_response(asdict(canary))

    async def end_canary(self, request: web.Request) -> web.Response:
        """Give it none, but for what gateway.yaml gives it; it is no error where there was none."""
        name = request.match_info["model"]
        others = {model: canary for model, canary in self._decisions.now.canaries.items() if model != name}
        self._decisions.decide(canaries=others)
        await self._gateway.write()
        return web.Response(status=204)

    async def models(self, _request: web.Request) -> web.Response:
        """Answer every version on the nodes: whether it is withdrawn, and what is in flight for it."""
        requests = await self._gateway.requests()
        fleet = self._gateway.fleet
        return web.json_response(
            [
                withdrawal(fleet, model, version, requests)
                for model in fleet.registered.values()
                for version in model.versions
            ]
        )

    async def model(self, request: web.Request) -> web.Response:
        """Answer one model, all versions together, or one of them (`?version=`)."""
        requests = await self._gateway.requests()
        fleet = self._gateway.fleet
        model, version = find(fleet, request.match_info["model"], request.query.get("version"))
        return web.json_response(withdrawal(fleet, model, version, requests))

    async def withdraw(self, request: web.Request) -> web.Response:
        """Take a model, or a version of it, off the routes, or put it back."""
        gateway, name = self._gateway, request.match_info["model"]
        asked: WithdrawalRequest = await _read(request, WithdrawalRequest)
        # Which version is the default, and whether it is there at all, may have changed just now.
        await gateway.look()
        withdrawn = self._decisions.now.withdrawn
        if not asked.withdrawn:
            # What no node has any more may come back.
            withdrawn -= {each for each in withdrawn if each[0] == name and asked.version in (None, each[1])}
            self._decisions.decide(withdrawn=withdrawn)
        model, version = find(gateway.fleet, name, asked.version)
        if asked.withdrawn and version is not None:
            check_default(gateway.fleet, model, version)
        versions = {(name, each) for each in model.versions if version in (None, each)}
        self._decisions.decide(withdrawn=withdrawn | versions if asked.withdrawn else withdrawn - versions)
        await gateway.write()
        return web.json_response(withdrawal(gateway.fleet, model, version, await gateway.requests()))

    def _node(self, name: str, traffic: Mapping[str, Traffic] | None) -> dict[str, Any]:
        in_flight, is_routed = (None, False) if traffic is None else traffic.get(name, Traffic(0, False))
        return {
            "name": name,
            "management": self._gateway.fleet.nodes[name].management,
            "state": "up" if self._gateway.nodes.is_up(name) else "down",
            "is_draining": name in self._gateway.fleet.draining,
            "is_routed": is_routed,
            "in_flight": in_flight,
        }


def find(fleet: Fleet, name: str, asked: str | None) -> tuple[Model, str | None]:
    """Find a model on the nodes, and the version of it that is meant, None for all; withdrawn or not.

    Raises:
        NotFound: no node has it.
    """
    everything = replace(fleet, models=fleet.registered)
    if asked is None and name in everything.models:
        return everything.models[name], None
    model, version = description.find(everything, name, asked or "")
    return model, version.version


def check_default(fleet: Fleet, model: Model, version: str) -> None:
    """Check that requests without a version are still answered where others of its versions are.

    Raises:
        BadRequest: they would not be, since it is the default everywhere.
    """
    served = fleet.models[model.name].versions if model.name in fleet.models else {}
    others = [each for name, each in served.items() if name != version]
    if others and not any(replica.is_default for each in others for replica in each.replicas.values()):
        raise BadRequest(
            f"version {version} of {model.name} is its default version: make another the default, or withdraw the model"
        )


def withdrawal(
    fleet: Fleet, model: Model, version: str | None, requests: Mapping[str, Mapping[str, int]] | None
) -> dict[str, Any]:
    """Describe a model, or a version of it, as JSON has it.

    Args:
        fleet: what is served, and what is not.
        model: a model on the nodes.
        version: one of its versions; None for all together.
        requests: cluster -> node -> requests in flight; None where that is not known.
    """
    served = fleet.models.get(model.name)
    return {
        "model": model.name,
        "version": version,
        "is_withdrawn": served is None or (version is not None and version not in served.versions),
        "in_flight": None if requests is None else _in_flight(model, version, requests),
    }


def _in_flight(model: Model, version: str | None, requests: Mapping[str, Mapping[str, int]]) -> int:
    """Count requests; of those without a version a node's own default has them, as far as the gateway can know."""
    unnamed = requests.get(cluster(model.name), {})
    if version is None:
        named = [requests.get(cluster(model.name, each), {}) for each in model.versions]
        return sum(sum(each.values()) for each in (unnamed, *named))
    replicas = model.versions[version].replicas
    return sum(requests.get(cluster(model.name, version), {}).values()) + sum(
        count for node, count in unnamed.items() if node in replicas and replicas[node].is_default
    )


async def _read(request: web.Request, kind: type[Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_json(await request.read() or b"{}")
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise BadRequest("; ".join(problems)) from None
