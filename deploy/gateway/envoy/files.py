"""Envoy's files: written whole, by rename, and only where they change; Envoy reads them anew at once.

    (Settings, Fleet) -> endpoints/, clusters.json, routes-http.json, routes-grpc.json, secret-*.json, listeners.json

What others need comes first: endpoints before their cluster, clusters before the routes to them. The folder and all
in it are their owner's alone, since keys and tokens stand in there. Beside each file lies what Envoy accepted last: it
comes back when Envoy rejects the file, so that an Envoy that starts again has a configuration.
"""

import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from deploy.gateway.envoy.clusters import clusters, endpoints, served
from deploy.gateway.envoy.listeners import CLUSTERS, LISTENERS, listeners, secrets
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP, routes, shut
from deploy.gateway.management import tokens_of
from deploy.gateway.settings import Settings, lookup
from deploy.gateway.state import Fleet

logger = logging.getLogger(__name__)

ENDPOINTS = "endpoints"
ROUTE_FILES = tuple(f"routes-{name}.json" for name in (HTTP, GRPC))
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
# Instances that Envoy takes beside those of clusters, and other programs of its user.
OTHER_INSTANCES = 24
ACCEPTED = ".accepted"
# The start of a file that `put` writes.
VERSION = re.compile(r'\{\s*"version_info": "(\w+)"')


def has_room(fleet: Fleet) -> bool:
    """Return whether Envoy can watch the endpoints of every cluster: each takes an inotify instance of its user."""
    count, most = sum(1 for _ in served(fleet)), int(INOTIFY.read_text()) - OTHER_INSTANCES
    if count > most:
        logger.error("%d models and versions; at most %d: raise fs.inotify.max_user_instances (sysctl -w)", count, most)
    return count <= most


def write(settings: Settings, fleet: Fleet, run: Path) -> list[str]:
    """Write what changed, remove the endpoints of what is no longer served; return the names of changed files.

    Host names are looked up and files of tokens read anew each time: this may block for as long as a name server takes.
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
            path.with_name(path.name + ACCEPTED).unlink(missing_ok=True)
            changed.append(f"{ENDPOINTS}/{path.name}")
    return changed


def statistics(fleet: Fleet) -> dict[str, str]:
    """Return under which name Envoy counts the updates of each file."""
    return {
        CLUSTERS: "cluster_manager.cds",
        LISTENERS: "listener_manager.lds",
        **{f"routes-{name}.json": f"http.{name}.rds.{name}" for name in (HTTP, GRPC)},
        **{each.file: f"cluster.{each.stat}" for each in served(fleet)},
    }


def written(run: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the version of each of these files that is there."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError), (run / name).open(encoding="utf-8") as file:
            if match := VERSION.match(file.read(64)):
                found[name] = match[1]
    return found


def settle(run: Path, accepted: Iterable[str], rejected: Iterable[str]) -> None:
    """Keep the files that Envoy has accepted, and put back what was kept of the others, with probes that fail."""
    for name in accepted:
        kept = name + ACCEPTED
        if written(run, [name])[name] != written(run, [kept]).get(kept):
            shutil.copy(run / name, run / f"{kept}.new")
            (run / f"{kept}.new").replace(run / kept)
    for name in rejected:
        with contextlib.suppress(FileNotFoundError):
            resources = json.loads((run / (name + ACCEPTED)).read_bytes())["resources"]
            put(run / name, [shut(each) if "virtual_hosts" in each else each for each in resources])


def prepare(run: Path) -> None:
    """Make the folder, for its owner alone."""
    for folder in (run, run / ENDPOINTS):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def put(path: Path, resources: list[Resource]) -> bool:
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
