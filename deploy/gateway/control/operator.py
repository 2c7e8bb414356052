"""What operators ask and decide, on the control port alone: nodes, draining, canaries, withdrawals.

GET /control/nodes; PUT /control/nodes/NAME; GET, PUT, DELETE /control/canaries/MODEL; GET, PUT /control/models/MODEL

A model, or a version of it, is withdrawn from the routes while it is still on its nodes, to be unregistered then:
TorchServe answers nothing of a batch that is being filled when its model is unregistered. What is withdrawn gets no new
request; what is in flight for it comes down to none.
"""

from dataclasses import asdict, replace
from typing import Any

from aiohttp import web
from pydantic.dataclasses import dataclass

from deploy.gateway.control import description
from deploy.gateway.control.errors import RequestError, read
from deploy.gateway.control.gateway import GATEWAY, Gateway
from deploy.gateway.envoy.clusters import cluster
from deploy.gateway.envoy.process import Endpoints
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, Model
from handlers.config import SETTINGS

# Seconds that a look at the nodes may take whose answer only has to be fresh.
LOOK_S = 3.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class DrainingRequest:
    """Whether a node is to be taken out."""

    draining: bool


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WithdrawalRequest:
    """Whether a version is to be taken off the routes; None for every version that is registered now."""

    withdrawn: bool
    version: str | None = None


routes = web.RouteTableDef()

# -- nodes ------------------------------------------------------------------------------------------------------------


@routes.get("/control/nodes")
async def nodes(request: web.Request) -> web.Response:
    """Answer every node: whether it answers, is draining, gets requests, and what it has in flight."""
    gateway = request.app[GATEWAY]
    endpoints = await gateway.endpoints()
    return web.json_response([_node(gateway, name, endpoints) for name in gateway.fleet.nodes])


@routes.put("/control/nodes/{node}")
async def drain(request: web.Request) -> web.Response:
    """Take a node out, or let it get requests again."""
    gateway, name = request.app[GATEWAY], request.match_info["node"]
    if name not in gateway.fleet.nodes:
        known = ", ".join(gateway.fleet.nodes) or "none"
        raise RequestError(404, f"no node {name[:100]}; known are {known}")
    asked = await read(request, DrainingRequest)
    draining = gateway.decided.draining
    gateway.decide(draining=draining | {name} if asked.draining else draining - {name})
    await gateway.apply()
    return web.json_response(_node(gateway, name, await gateway.endpoints()))


def _node(gateway: Gateway, name: str, endpoints: Endpoints | None) -> dict[str, Any]:
    found = [on[name] for on in (endpoints or {}).values() if name in on]
    return {
        "name": name,
        "management": gateway.fleet.nodes[name].management,
        "state": "up" if gateway.watches[name].is_up else "down",
        "is_draining": name in gateway.fleet.draining,
        "is_routed": bool(found) and all(each.is_healthy for each in found),
        "in_flight": None if endpoints is None else sum(each.in_flight for each in found),
    }


# -- canaries ---------------------------------------------------------------------------------------------------------


@routes.get("/control/canaries")
@routes.get("/control/canaries/{model:[^/]+}")
async def canaries(request: web.Request) -> web.Response:
    """Answer every canary, by its model, or a model's."""
    found = {model: asdict(canary) for model, canary in request.app[GATEWAY].canaries().items()}
    if (model := request.match_info.get("model")) is None:
        return web.json_response(found)
    if model not in found:
        raise RequestError(404, f"no canary of {model[:100]}")
    return web.json_response(found[model])


@routes.put("/control/canaries/{model:[^/]+}")
async def try_canary(request: web.Request) -> web.Response:
    """Send a version a share of a model's traffic."""
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    asked = await read(request, Canary)
    model, version = description.find(gateway.fleet, name, asked.version)
    if version.version == model.default:
        raise RequestError(400, f"version {version.version} of {name} is its default version: nothing to try")
    chosen = replace(asked, version=version.version)
    gateway.decide(canaries={**gateway.decided.canaries, name: chosen})
    await gateway.apply()
    return web.json_response(asdict(chosen))


@routes.delete("/control/canaries/{model:[^/]+}")
async def end_canary(request: web.Request) -> web.Response:
    """Send it nothing but its share of gateway.yaml; it is no error where there was none."""
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    gateway.decide(canaries={model: canary for model, canary in gateway.decided.canaries.items() if model != name})
    await gateway.apply()
    return web.Response(status=204)


# -- models -----------------------------------------------------------------------------------------------------------


@routes.get("/control/models")
async def models(request: web.Request) -> web.Response:
    """Answer every version on the nodes: whether it is withdrawn, and what is in flight for it."""
    gateway = request.app[GATEWAY]
    endpoints, fleet = await gateway.endpoints(), gateway.fleet
    every = [(model, version) for model in fleet.registered.values() for version in model.versions]
    return web.json_response([_withdrawal(fleet, model, version, endpoints) for model, version in every])


@routes.get("/control/models/{model:[^/]+}")
async def model(request: web.Request) -> web.Response:
    """Answer one model, all versions together, or one of them (`?version=`)."""
    gateway = request.app[GATEWAY]
    found, version = _find(gateway.fleet, request.match_info["model"], request.query.get("version"))
    return web.json_response(_withdrawal(gateway.fleet, found, version, await gateway.endpoints()))


@routes.put("/control/models/{model:[^/]+}")
async def withdraw(request: web.Request) -> web.Response:
    """Take a model, or a version of it, off the routes, or put it back."""
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    asked = await read(request, WithdrawalRequest)
    # Which version is the default, and whether it is there at all, may have changed just now.
    await gateway.look(LOOK_S)
    withdrawn = gateway.decided.withdrawn
    if not asked.withdrawn:
        # What no node has any more may come back.
        withdrawn -= {each for each in withdrawn if each[0] == name and asked.version in (None, each[1])}
        gateway.decide(withdrawn=withdrawn)
    found, version = _find(gateway.fleet, name, asked.version)
    if asked.withdrawn and version is not None:
        _check_default(gateway.fleet, name, version)
    versions = {(name, each) for each in found.versions if version in (None, each)}
    gateway.decide(withdrawn=withdrawn | versions if asked.withdrawn else withdrawn - versions)
    await gateway.apply()
    return web.json_response(_withdrawal(gateway.fleet, found, version, await gateway.endpoints()))


def _find(fleet: Fleet, name: str, asked: str | None) -> tuple[Model, str | None]:
    """Find a model on the nodes, and the version of it that is meant, None for all; withdrawn or not."""
    if asked is None and name in fleet.registered:
        return fleet.registered[name], None
    model, version = description.find(replace(fleet, withdrawn=frozenset()), name, asked or "")
    return model, version.version


def _check_default(fleet: Fleet, name: str, version: str) -> None:
    """Check that requests without a version are still answered where others of its versions are."""
    served = fleet.models[name].versions if name in fleet.models else {}
    others = [each for number, each in served.items() if number != version]
    if others and not any(replica.is_default for each in others for replica in each.replicas.values()):
        is_default = f"version {version} of {name} is its default version"
        raise RequestError(400, f"{is_default}: make another the default, or withdraw the model")


def _withdrawal(fleet: Fleet, model: Model, version: str | None, endpoints: Endpoints | None) -> dict[str, Any]:
    """Describe a version of a model, or for None all of them; `endpoints` are None where Envoy does not answer."""
    asked = [version] if version is not None else list(model.versions)
    return {
        "model": model.name,
        "version": version,
        "is_withdrawn": all((model.name, each) in fleet.withdrawn for each in asked),
        "in_flight": None if endpoints is None else _in_flight(model, version, endpoints),
    }


def _in_flight(model: Model, version: str | None, endpoints: Endpoints) -> int:
    """Count requests; of those without a version a node's own default has them, as far as the gateway can know."""
    unnamed = endpoints.get(cluster(model.name), {})
    if version is None:
        named = [endpoints.get(cluster(model.name, each), {}) for each in model.versions]
        return sum(each.in_flight for nodes in (unnamed, *named) for each in nodes.values())
    replicas = model.versions[version].replicas
    defaults = [each for node, each in unnamed.items() if node in replicas and replicas[node].is_default]
    return sum(each.in_flight for each in [*endpoints.get(cluster(model.name, version), {}).values(), *defaults])
