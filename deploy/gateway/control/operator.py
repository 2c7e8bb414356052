"""What whoever runs the servers asks and decides, on the control port alone: nodes, draining, canaries, withdrawals.

GET /control/nodes; PUT /control/nodes/NAME; GET, PUT, DELETE /control/canaries/MODEL; GET, PUT /control/models/MODEL
"""

from collections.abc import Mapping
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from deploy.gateway.control import description, withdrawal
from deploy.gateway.control.decisions import DrainingRequest, WithdrawalRequest, canary_document
from deploy.gateway.control.errors import BadRequest, NotFound
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.envoy.process import Traffic
from deploy.gateway.settings import CanaryRequest


class Operator:
    """The handlers of the routes."""

    def __init__(self, gateway: Gateway) -> None:
        """Decide over the gateway's nodes and models."""
        self._gateway = gateway

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
        """Every node: whether it answers, is draining, gets requests, and what it has in flight."""
        traffic = await self._gateway.traffic()
        return web.json_response([self._node(name, traffic) for name in self._gateway.fleet.nodes])

    async def drain(self, request: web.Request) -> web.Response:
        """Take a node out, or let it get requests again."""
        name = request.match_info["node"]
        if name not in self._gateway.fleet.nodes:
            raise NotFound(f"no node {name[:100]}; known are {', '.join(self._gateway.fleet.nodes) or 'none'}")
        asked: DrainingRequest = await _read(request, DrainingRequest)
        self._gateway.decisions.drain(name, asked.draining)
        await self._gateway.write()
        return web.json_response(self._node(name, await self._gateway.traffic()))

    async def canaries(self, _request: web.Request) -> web.Response:
        """Every canary, by its model."""
        canaries = self._gateway.canaries()
        return web.json_response({model: canary_document(canary) for model, canary in canaries.items()})

    async def canary(self, request: web.Request) -> web.Response:
        """A model's canary."""
        model = request.match_info["model"]
        canary = self._gateway.canaries().get(model)
        if canary is None:
            raise NotFound(f"no canary of {model[:100]}")
        return web.json_response(canary_document(canary))

    async def try_canary(self, request: web.Request) -> web.Response:
        """Give a version a share of a model's traffic."""
        name = request.match_info["model"]
        asked: CanaryRequest = await _read(request, CanaryRequest)
        model, version = description.find(self._gateway.fleet, name, asked.version)
        if version.version == model.default:
            raise BadRequest(f"version {version.version} of {name} is its default version: nothing to try")
        self._gateway.decisions.try_canary(
            name, CanaryRequest(version=version.version, percent=asked.percent, header=asked.header)
        )
        await self._gateway.write()
        return web.json_response(canary_document(self._gateway.canaries()[name]))

    async def end_canary(self, request: web.Request) -> web.Response:
        """Give it none, but for what gateway.yaml gives it; it is no error where there was none."""
        self._gateway.decisions.end_canary(request.match_info["model"])
        await self._gateway.write()
        return web.Response(status=204)

    async def models(self, _request: web.Request) -> web.Response:
        """Every version on the nodes: whether it is withdrawn, and what is in flight for it."""
        requests = await self._gateway.requests()
        fleet = self._gateway.fleet
        return web.json_response(
            [
                withdrawal.document(fleet, model, version, requests)
                for model in fleet.registered.values()
                for version in model.versions
            ]
        )

    async def model(self, request: web.Request) -> web.Response:
        """One model, all versions together, or one of them (`?version=`)."""
        requests = await self._gateway.requests()
        fleet = self._gateway.fleet
        model, version = withdrawal.find(fleet, request.match_info["model"], request.query.get("version"))
        return web.json_response(withdrawal.document(fleet, model, version, requests))

    async def withdraw(self, request: web.Request) -> web.Response:
        """Take a model, or a version of it, off the routes, or put it back."""
        gateway, name = self._gateway, request.match_info["model"]
        asked: WithdrawalRequest = await _read(request, WithdrawalRequest)
        # Which version is the default, and whether it is there at all, may have changed just now.
        await gateway.look()
        if not asked.withdrawn:
            # What no node has any more may come back.
            known = {
                each for each in gateway.decisions.withdrawn if each[0] == name and asked.version in (None, each[1])
            }
            gateway.decisions.withdraw(known, is_withdrawn=False)
        model, version = withdrawal.find(gateway.fleet, name, asked.version)
        if asked.withdrawn and version is not None:
            withdrawal.check(gateway.fleet, model, version)
        gateway.decisions.withdraw(
            {(name, each) for each in model.versions if version in (None, each)}, asked.withdrawn
        )
        await gateway.write()
        return web.json_response(withdrawal.document(gateway.fleet, model, version, await gateway.requests()))

    def _node(self, name: str, traffic: Mapping[str, Traffic] | None) -> dict[str, Any]:
        in_flight, is_routed = (None, False) if traffic is None else traffic.get(name, Traffic(0, False))
        return {
            "name": name,
            "management": self._gateway.fleet.nodes[name].management,
            "state": "up" if self._gateway.discovery.is_up(name) else "down",
            "is_draining": name in self._gateway.fleet.draining,
            "is_routed": is_routed,
            "in_flight": in_flight,
        }


async def _read(request: web.Request, kind: type[Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_json(await request.read() or b"{}")
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {problem['msg']}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise BadRequest("; ".join(problems)) from None
