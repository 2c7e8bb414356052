"""Envoy's files: replaced by a rename, only if they change; Envoy reads or (discovery.py) receives them at once.

    (Settings, Fleet) -> clusters.json, routes-*.json, secret-*.json, filter-*.json, listeners.json, endpoints.json

Keys are written first, clusters before their routes, and endpoints last: a name server may take long, and keys never
wait.
Only the owner can read the folder, since it contains keys and tokens. A copy of each file's last accepted version is
kept beside it: it replaces a rejected file, so that a restarted Envoy has a valid configuration.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from deploy.gateway.configuration import resolve_host
from deploy.gateway.envoy.clusters import list_upstreams, make_clusters, make_endpoints
from deploy.gateway.envoy.discovery import ENDPOINTS
from deploy.gateway.envoy.listeners import CLUSTERS, FILTERS, LISTENERS, make_filters, make_listeners, make_secrets
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP, make_routes, shut_routes
from deploy.gateway.settings import GatewaySettings
from deploy.gateway.state import Fleet
from deploy.nodes.run.node import read_tokens
from torchserve_client.files import replacing

ACCEPTED = ".accepted"
VERSION = re.compile(r'\{\s*"version_info": "(\w+)"')  # the start of a file of `write_resources`


def write_filters(settings: GatewaySettings, fleet: Fleet, state_dir: Path) -> list[str]:
    """Write the keys and rates and return the names of changed files."""
    make_folder(state_dir)
    made = make_filters(settings, fleet.authorities)
    return [name for name, each in made.items() if write_resources(state_dir / name, [each])]


def shut(state_dir: Path) -> None:
    """Let Envoy answer 503 to probes and inferences: its keys may no longer be those of the key file."""
    for path in [state_dir / f"routes-{name}.json" for name in (HTTP, GRPC)]:
        with contextlib.suppress(FileNotFoundError):
            tables = json.loads(path.read_bytes())["resources"]
            write_resources(path, [shut_routes(each, to_nodes=True) for each in tables])


def write(settings: GatewaySettings, fleet: Fleet, state_dir: Path) -> list[str]:
    """Write changed files and return their names; may block for as long as a name server takes."""
    contents: dict[str, list[Resource]] = {
        CLUSTERS: make_clusters(settings, fleet),
        **{f"routes-{name}.json": [make_routes(settings, fleet, name)] for name in (HTTP, GRPC)},
        **({name: [secret] for name, secret in make_secrets(settings.tls).items()} if settings.tls else {}),
        LISTENERS: make_listeners(settings, *fleet.authorities[:1]),
    }
    changed = write_filters(settings, fleet, state_dir)
    changed += [name for name, resources in contents.items() if write_resources(state_dir / name, resources)]

    @cache
    def resolve(host: str) -> str | None:
        # Always the first of several addresses, or each poll would be a change.
        with contextlib.suppress(OSError, IndexError):
            return resolve_host(host)[0]
        return None

    token_files = [(node.name, node.token_file) for node in fleet.nodes.values() if node.token_file is not None]
    tokens = {name: found for name, path in token_files if (found := read_tokens(path)) is not None}
    endpoints = [make_endpoints(fleet, each, resolve, tokens) for each in list_upstreams(fleet)]
    return changed + [ENDPOINTS] * write_resources(state_dir / ENDPOINTS, endpoints)


def list_statistics(fleet: Fleet) -> dict[str, str]:
    """Return Envoy's statistics of each file: name -> file."""
    return {
        "cluster_manager.cds": CLUSTERS,
        "listener_manager.lds": LISTENERS,
        **{f"extension_config_discovery.http_filter.gateway.{each}": file for each, file in FILTERS.items()},
        **{f"http.{name}.rds.{name}": f"routes-{name}.json" for name in (HTTP, GRPC)},
        **{f"cluster.{each.stat}": ENDPOINTS for each in list_upstreams(fleet)},
    }


def read_versions(state_dir: Path, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError), (state_dir / name).open(encoding="utf-8") as file:
            if match := VERSION.match(file.read(64)):
                found[name] = match[1]
    return found


def keep_accepted(state_dir: Path, accepted: Iterable[str], rejected: Iterable[str]) -> None:
    """Copy the files that Envoy has accepted, and restore the copies of the others, with probes that fail."""
    for name in accepted:
        copy = name + ACCEPTED
        if read_versions(state_dir, [name])[name] != read_versions(state_dir, [copy]).get(copy):
            with replacing(state_dir / copy) as new:
                shutil.copy(state_dir / name, new)
    for name in rejected:
        with contextlib.suppress(FileNotFoundError):
            resources = json.loads((state_dir / (name + ACCEPTED)).read_bytes())["resources"]
            write_resources(
                state_dir / name, [shut_routes(each) if "virtual_hosts" in each else each for each in resources]
            )


def make_folder(state_dir: Path) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o700)


def write_resources(path: Path, resources: list[Resource]) -> bool:
    """Write resources of one kind for Envoy if they changed; return whether they did."""
    # A resource a line: json indents slowly, and hundreds of models have megabytes.
    lines = ",\n".join(map(json.dumps, resources))
    version = hashlib.sha256(lines.encode()).hexdigest()[:16]
    text = f'{{"version_info": "{version}", "resources": [\n{lines}\n]}}\n'
    with contextlib.suppress(FileNotFoundError):
        if path.read_text(encoding="utf-8") == text:
            return False
    with replacing(path) as new:
        new.touch(0o600, exist_ok=False)
        new.write_text(text, encoding="utf-8")
    return True
