"""Deep health behind a gateway (`deploy.protocol.deep`): each node with a READY worker answers a model's own sample.

A model is healthy if one node answers, since Envoy sends requests there; the answer names the others, too.
"""

import asyncio
from functools import partial

from deploy.gateway.control.gateway import Control
from deploy.gateway.management import NodeFailed, ask_sample
from deploy.gateway.state import ServedModel
from deploy.protocol.deep import problem_of


async def check(gateway: Control, *names: str) -> tuple[dict[str, str], bool]:
    """Return what is wrong with models, by model and node, and whether each model is healthy."""
    models = gateway.fleet.models
    found = await asyncio.gather(*(_check(gateway, models[name]) for name in names))
    return {key: words for each in found for key, words in each.items()}, all(
        not each or "" in each.values() for each in found
    )


async def _check(gateway: Control, model: ServedModel) -> dict[str, str]:
    """Return the problem, or "", of each node with the default version; nothing of a model that was never READY."""
    version = model.versions[model.default] if model.default else None
    if version is None:
        return {}
    nodes = {name: each for name, each in version.placements.items() if each.is_ready}
    if not nodes and any(each.was_ready for each in version.placements.values()):
        return {model.name: "no worker is READY"}
    # To another project's handler the question is an input.
    asked = {name: (name, model.name, version.version) for name, each in nodes.items() if not each.is_foreign}
    checks = (gateway.checks.check(key, partial(_ask, gateway, *key)) for key in asked.values())
    return {f"{model.name} on {name}": words for name, words in zip(asked, await asyncio.gather(*checks), strict=True)}


async def _ask(gateway: Control, node: str, model: str, version: str) -> str:
    try:
        return problem_of(*await ask_sample(gateway.session, gateway.watches[node].node, model, version))
    except NodeFailed as error:
        return str(error)
