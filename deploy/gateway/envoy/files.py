"""Envoy's files: replaced by a rename, only if they change; Envoy reads them at once.

    (Settings, Fleet) -> endpoints/, clusters.json, routes-http.json, routes-grpc.json, secret-*.json, listeners.json

Files are written before the files that refer to them: endpoints before their cluster, clusters before their routes.
Only the owner can read the folder, since it contains keys and tokens. A copy of each file's last accepted version is
kept beside it: it replaces a rejected file, so that a restarted Envoy has a valid configuration.
"""

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from deploy.gateway.configuration import resolve_host
from deploy.gateway.envoy.clusters import list_upstreams, make_clusters, make_endpoints
from deploy.gateway.envoy.listeners import CLUSTERS, LISTENERS, make_listeners, make_secrets
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP, make_routes, shut_routes
from deploy.gateway.settings import GatewaySettings
from deploy.gateway.state import Fleet
from deploy.run.node import read_tokens

logger = logging.getLogger(__name__)

ENDPOINTS = "endpoints"
ROUTE_FILES = tuple(f"routes-{name}.json" for name in (HTTP, GRPC))
LIBC = ctypes.CDLL(None)
# Inotify instances for other files of Envoy, and for other programs that start.
RESERVE = 8
ACCEPTED = ".accepted"
# The start of a file of `write_resources`.
VERSION = re.compile(r'\{\s*"version_info": "(\w+)"')


def has_room(fleet: Fleet, state_dir: Path, *, is_running: bool) -> bool:
    """Return whether Envoy can watch the endpoints of every cluster: each needs an inotify instance of its user.

    A running Envoy has those of the files that exist. Other programs may have any number, so the others are tried.
    """
    wanted = [each.file for each in list_upstreams(fleet)]
    count = len([name for name in wanted if not (is_running and (state_dir / name).exists())])
    if count and not _can_watch(count + RESERVE):
        logger.error("%d more models and versions than can be watched: raise fs.inotify.max_user_instances", count)
        return False
    return True


def _can_watch(count: int) -> bool:
    opened = []
    try:
        for _ in range(count):
            opened.append(found := LIBC.inotify_init())
            if found < 0:
                return False
        return True
    finally:
        for each in opened:
            if each >= 0:
                os.close(each)


def write_door(settings: GatewaySettings, state_dir: Path) -> list[str]:
    """Write the listeners, which have the keys, and certificates; return the names of changed files."""
    make_folders(state_dir)
    contents: dict[str, list[Resource]] = {
        **({name: [secret] for name, secret in make_secrets(settings.tls).items()} if settings.tls else {}),
        LISTENERS: make_listeners(settings),
    }
    return [name for name, resources in contents.items() if write_resources(state_dir / name, resources)]


def write(settings: GatewaySettings, fleet: Fleet, state_dir: Path) -> list[str]:
    """Write changed files, remove the endpoints of unregistered models; return the names of changed files.

    This resolves host names and reads token files, and may block for as long as a name server takes.
    """
    make_folders(state_dir)

    @cache
    def resolve(host: str) -> str | None:
        # Always the first of several addresses, or each poll would be a change.
        with contextlib.suppress(OSError, IndexError):
            return resolve_host(host)[0]
        return None

    token_files = [(node.name, node.token_file) for node in fleet.nodes.values() if node.token_file is not None]
    tokens = {name: found for name, path in token_files if (found := read_tokens(path)) is not None}
    upstreams = list(list_upstreams(fleet))
    contents: dict[str, list[Resource]] = {
        each.file: [make_endpoints(fleet, each, resolve, tokens)] for each in upstreams
    }
    contents |= {
        CLUSTERS: make_clusters(settings, fleet),
        f"routes-{HTTP}.json": [make_routes(settings, fleet, HTTP)],
        f"routes-{GRPC}.json": [make_routes(settings, fleet, GRPC)],
    }
    changed = [name for name, resources in contents.items() if write_resources(state_dir / name, resources)]
    changed += write_door(settings, state_dir)
    kept = {state_dir / each.file for each in upstreams}
    for path in sorted((state_dir / ENDPOINTS).glob("*.json")):
        if path not in kept:
            path.unlink()
            path.with_name(path.name + ACCEPTED).unlink(missing_ok=True)
            changed.append(f"{ENDPOINTS}/{path.name}")
    return changed


def name_statistics(fleet: Fleet) -> dict[str, str]:
    """Return the name of Envoy's statistics of each file."""
    return {
        CLUSTERS: "cluster_manager.cds",
        LISTENERS: "listener_manager.lds",
        **{f"routes-{name}.json": f"http.{name}.rds.{name}" for name in (HTTP, GRPC)},
        **{each.file: f"cluster.{each.stat}" for each in list_upstreams(fleet)},
    }


def read_versions(state_dir: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the version of each of these files that exists."""
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
            shutil.copy(state_dir / name, state_dir / f"{copy}.new")
            (state_dir / f"{copy}.new").replace(state_dir / copy)
    for name in rejected:
        with contextlib.suppress(FileNotFoundError):
            resources = json.loads((state_dir / (name + ACCEPTED)).read_bytes())["resources"]
            write_resources(
                state_dir / name, [shut_routes(each) if "virtual_hosts" in each else each for each in resources]
            )


def make_folders(state_dir: Path) -> None:
    for folder in (state_dir, state_dir / ENDPOINTS):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def write_resources(path: Path, resources: list[Resource]) -> bool:
    """Write resources of one kind for Envoy if they changed; return whether they did."""
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
