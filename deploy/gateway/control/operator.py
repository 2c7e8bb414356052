"""Operators' requests, only on the control port: nodes, drains, canaries, withdrawals.

GET /control/nodes; PUT /control/nodes/NAME; GET, PUT, DELETE /control/canaries/MODEL; GET, PUT /control/models/MODEL

Before a model or a version is unregistered, it is withdrawn: TorchServe does not answer the requests of a batch that it
fills while the model is unregistered. A withdrawn version receives no new requests, and its requests in flight end.
"""

from dataclasses import asdict, replace

from aiohttp import web
from pydantic.dataclasses import dataclass

from deploy.gateway.control.errors import read_body
from deploy.gateway.control.gateway import GATEWAY, Control
from deploy.gateway.control.protocol import find
from deploy.gateway.envoy.clusters import name_cluster
from deploy.gateway.envoy.process import Endpoints
from deploy.gateway.settings import Canary
from deploy.gateway.state import Fleet, ServedModel
from deploy.protocol.errors import RequestError
from handlers.config import SETTINGS
from torchserve_client.payloads import Json

POLL_S = 3.0  # timeout of a poll of the nodes before a decision


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class DrainingRequest:
    draining: bool


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WithdrawalRequest:
    """The body that withdraws a version or restores it; None means every version that is registered now."""

    withdrawn: bool
    version: str | None = None


routes = web.RouteTableDef()


@routes.get("/control/nodes")
async def nodes(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    endpoints = await gateway.endpoints()
    return web.json_response([_node(gateway, name, endpoints) for name in gateway.fleet.nodes])


@routes.put("/control/nodes/{node}")
async def drain(request: web.Request) -> web.Response:
    gateway, name = request.app[GATEWAY], request.match_info["node"]
    if name not in gateway.fleet.nodes:
        raise RequestError(404, f"no node {name[:100]}; known are {', '.join(gateway.fleet.nodes) or 'none'}")
    body = await read_body(request, DrainingRequest)
    draining = gateway.decisions.draining
    gateway.decide(draining=draining | {name} if body.draining else draining - {name})
    await gateway.apply()
    return web.json_response(_node(gateway, name, await gateway.endpoints()))


def _node(gateway: Control, name: str, endpoints: Endpoints | None) -> Json:
    found = {cluster: on[name] for cluster, on in (endpoints or {}).items() if name in on}
    # A version that the node could not restore receives no requests there, and the others do.
    models = [key for key, placement in gateway.watches[name].models.items() if not placement.is_missing]
    served = {name_cluster(*key) for key in models} | {name_cluster(model) for model, _ in models}
    routed = [each for cluster, each in found.items() if cluster in served]
    return {
        "name": name,
        "management": gateway.fleet.nodes[name].management,
        "state": "up" if gateway.watches[name].is_up else "down",
        "is_draining": name in gateway.fleet.draining,
        "is_routed": bool(routed) and all(each.is_healthy for each in routed),
        "in_flight": None if endpoints is None else sum(each.in_flight for each in found.values()),
    }


@routes.get("/control/canaries")
@routes.get("/control/canaries/{model:[^/]+}")
async def canaries(request: web.Request) -> web.Response:
    """Return every canary by its model, or the canary of one model."""
    found = {model: asdict(canary) for model, canary in request.app[GATEWAY].canaries().items()}
    if (model := request.match_info.get("model")) is None:
        return web.json_response(found)
    if model not in found:
        raise RequestError(404, f"no canary of {model[:100]}")
    return web.json_response(found[model])


@routes.put("/control/canaries/{model:[^/]+}")
async def set_canary(request: web.Request) -> web.Response:
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    body = await read_body(request, Canary)
    model, version = find(gateway.fleet, name, body.version)
    if version.version == model.default:
        raise RequestError(
            400, f"version {version.version} of {name} is its default version; a canary is another version"
        )
    chosen = replace(body, version=version.version)
    gateway.decide(canaries={**gateway.decisions.canaries, name: chosen})
    await gateway.apply()
    return web.json_response(asdict(chosen))


@routes.delete("/control/canaries/{model:[^/]+}")
async def end_canary(request: web.Request) -> web.Response:
    """Remove a canary of the control port; the canary of gateway.yaml stays, and a missing one is not an error."""
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    gateway.decide(canaries={model: canary for model, canary in gateway.decisions.canaries.items() if model != name})
    await gateway.apply()
    return web.Response(status=204)


@routes.get("/control/models/{model:[^/]+}")
async def model(request: web.Request) -> web.Response:
    gateway = request.app[GATEWAY]
    found, version = _find(gateway.fleet, request.match_info["model"], request.query.get("version"))
    return web.json_response(_describe(gateway.fleet, found, version, await gateway.endpoints()))


@routes.put("/control/models/{model:[^/]+}")
async def withdraw(request: web.Request) -> web.Response:
    gateway, name = request.app[GATEWAY], request.match_info["model"]
    body = await read_body(request, WithdrawalRequest)
    await gateway.poll(POLL_S)  # the default version and the registrations may have just changed
    withdrawn = gateway.decisions.withdrawn
    if not body.withdrawn:
        # A version that no node has may be registered again.
        withdrawn -= {each for each in withdrawn if each[0] == name and body.version in (None, each[1])}
        gateway.decide(withdrawn=withdrawn)
    found, version = _find(gateway.fleet, name, body.version)
    if body.withdrawn and version is not None:
        _check_default(gateway.fleet, name, version)
    versions = {(name, each) for each in found.versions if version in (None, each)}
    gateway.decide(withdrawn=withdrawn | versions if body.withdrawn else withdrawn - versions)
    await gateway.apply()
    return web.json_response(_describe(gateway.fleet, found, version, await gateway.endpoints()))


def _find(fleet: Fleet, name: str, requested: str | None) -> tuple[ServedModel, str | None]:
    """Find a registered model and the requested version, None for all; withdrawn or not."""
    if requested is None and name in fleet.registered:
        return fleet.registered[name], None
    model, version = find(replace(fleet, withdrawn=frozenset()), name, requested or "")
    return model, version.version


def _check_default(fleet: Fleet, name: str, version: str) -> None:
    """Refuse to withdraw the default version while other versions of the model are served."""
    served = fleet.models[name].versions if name in fleet.models else {}
    others = [each for number, each in served.items() if number != version]
    if others and not any(placement.is_default for each in others for placement in each.placements.values()):
        is_default = f"version {version} of {name} is its default version"
        raise RequestError(400, f"{is_default}: make another version the default, or withdraw the model")


def _describe(fleet: Fleet, model: ServedModel, version: str | None, endpoints: Endpoints | None) -> Json:
    """Describe a version of a model, None for all together; `endpoints` are None if Envoy does not answer."""
    versions = [version] if version is not None else list(model.versions)
    return {
        "model": model.name,
        "version": version,
        "is_withdrawn": all((model.name, each) in fleet.withdrawn for each in versions),
        "in_flight": None if endpoints is None else _in_flight(model, version, endpoints),
    }


def _in_flight(model: ServedModel, version: str | None, endpoints: Endpoints) -> int:
    """Count requests in flight; a request without a version counts for its node's default version."""
    unnamed = endpoints.get(name_cluster(model.name), {})
    if version is None:
        named = [endpoints.get(name_cluster(model.name, each), {}) for each in model.versions]
        return sum(each.in_flight for nodes in (unnamed, *named) for each in nodes.values())
    placements = model.versions[version].placements
    defaults = [each for node, each in unnamed.items() if node in placements and placements[node].is_default]
    return sum(each.in_flight for each in [*endpoints.get(name_cluster(model.name, version), {}).values(), *defaults])
