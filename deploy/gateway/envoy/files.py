"""Envoy's files: written whole, by rename, and only where they change; Envoy reads them anew at once.

    (Settings, Fleet) -> endpoints/, clusters.json, routes-http.json, routes-grpc.json, secret-*.json, listeners.json

What others need comes first: endpoints before their cluster, clusters before the routes to them. The folder and all
in it are their owner's alone, since keys and tokens stand in there.
"""

import contextlib
import hashlib
import json
from functools import cache
from pathlib import Path

from deploy.gateway.envoy.clusters import clusters, endpoints, served
from deploy.gateway.envoy.listeners import CLUSTERS, LISTENERS, listeners, secrets
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP, routes
from deploy.gateway.management import tokens_of
from deploy.gateway.settings import Settings, lookup
from deploy.gateway.state import Fleet

ENDPOINTS = "endpoints"


def write(settings: Settings, fleet: Fleet, run: Path) -> list[str]:
    """Write what changed, and remove the endpoints of what is no longer served.

    Host names are looked up and files of tokens read anew each time: this may block for as long as a name server takes.

    Returns:
        Names of the files that changed, those removed included.

    Raises:
        OSError: the folder cannot be written.
    """
    prepare(run)

    @cache
    def resolve(host: str) -> str | None:
        # The same one each time where there are several, or every look would be a change.
        with contextlib.suppress(OSError, IndexError):
            return lookup(host)[0]
        return None

    with_keys = [(node.name, node.token_file) for node in fleet.nodes.values() if node.token_file is not None]
    tokens = {name: found for name, path in with_keys if (found := tokens_of(path)) is not None}
    parts = list(served(fleet))
    changed = [each.file for each in parts if put(run / each.file, [endpoints(fleet, each, resolve, tokens)])]
    everything: dict[str, list[Resource]] = {
        **({name: [secret] for name, secret in secrets(settings.tls).items()} if settings.tls else {}),
        CLUSTERS: clusters(settings, fleet),
        f"routes-{HTTP}.json": [routes(settings, fleet, HTTP)],
        f"routes-{GRPC}.json": [routes(settings, fleet, GRPC)],
        LISTENERS: listeners(settings),
    }
    changed += [name for name, resources in everything.items() if put(run / name, resources)]
    kept = {run / each.file for each in parts}
    for path in sorted((run / ENDPOINTS).glob("*.json")):
        if path not in kept:
            path.unlink()
            changed.append(f"{ENDPOINTS}/{path.name}")
    return changed


def prepare(run: Path) -> None:
    """Make the folder, for its owner alone."""
    for folder in (run, run / ENDPOINTS):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def put(path: Path, resources: list[Resource]) -> bool:
    """Write resources of one kind for Envoy, where they changed; say whether they did.

    Raises:
        OSError: the folder cannot be written.
    """
    version = hashlib.sha256(json.dumps(resources, sort_keys=True).encode()).hexdigest()[:16]
    text = json.dumps({"version_info": version, "resources": resources}, indent=1)
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return False
    new = path.with_name(path.name + ".new")
    new.touch(mode=0o600)
    new.chmod(0o600)
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return True
