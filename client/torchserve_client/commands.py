"""The commands of `torchserve-client`, except `predict` (torchserve_client.bulk); each returns its exit code."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import wraps
from pathlib import Path

from rich.console import Console
from rich.table import Table

from torchserve_client.archives import check_name, find_version, read_fingerprint, read_maker
from torchserve_client.archives import describe as describe_archive
from torchserve_client.client import Client
from torchserve_client.errors import ClientError, InvalidPayload, LoadFailed, ManagementError
from torchserve_client.gateway import Gateway, find_gateway
from torchserve_client.management import Management
from torchserve_client.metadata import Metadata
from torchserve_client.nodes import Nodes
from torchserve_client.payloads import Json
from torchserve_client.rollout import Registration, Rollout
from torchserve_client.version import VERSION
from torchserve_client.worker_log import WorkerLog, wait_loaded

# Seconds that `describe` waits for a model's metadata, so that a busy or broken model does not delay it.
METADATA_S = 2.0

out = Console(highlight=False, markup=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

# (options of the command line, management APIs, inference API) -> exit code
Command = Callable[[argparse.Namespace, Nodes, Client], int]


def on_each(run: Callable[[argparse.Namespace, Management], int]) -> Command:
    """Make a command that runs on every node and prints its name if there are several."""

    @wraps(run)
    def command(options: argparse.Namespace, nodes: Nodes, client: Client) -> int:
        def call(name: str, management: Management) -> int:
            if len(nodes.by_name) > 1:
                out.print(f"{name}:")
            logs = nodes.logs.get(name, getattr(options, "logs", None))
            own = {"logs": logs, "inference": nodes.inference.get(name, client)}
            return run(argparse.Namespace(**{**vars(options), **own}), management)

        return max(nodes.each_named(call).values())

    return command


def embed(options: argparse.Namespace, _: Nodes, client: Client) -> int:
    for vector in client.embed(options.model, options.text or _read_lines(), **dict(options.option)):
        out.print(json.dumps(vector))
    return 0


def rerank(options: argparse.Namespace, _: Nodes, client: Client) -> int:
    documents = options.document or _read_lines()
    for ranked in client.rerank(options.model, options.query, documents, top_n=options.top_n):
        out.print(f"{ranked.score:.4f}  {documents[ranked.index]}")
    return 0


def _read_lines() -> list[str]:
    return [line for line in sys.stdin.read().splitlines() if line.strip()]


@on_each
def register(options: argparse.Namespace, management: Management) -> int:
    model, archive = options.model, options.archive or f"{options.model}.mar"
    check_name(model)
    log = WorkerLog(options.logs / "model_log.log", model)
    before = management.versions(model, is_missing_ok=True)
    sizes = {"batch_size": options.batch_size, "max_batch_delay_ms": options.max_batch_delay}
    try:
        management.register(archive, **sizes, initial_workers=1, model_name=model)
        (version,) = set(management.versions(model)) - set(before)
    except ManagementError as error:
        if error.status != 409 or (found := _find_registered(options, management, archive)) is None:
            raise
        version = found
    description = management.describe(model, version)
    out.print(
        f"{model}: registered, version {version}, batch_size {description['batchSize']}, "
        f"max_batch_delay {description['maxBatchDelay']} ms, {_workers(description['minWorkers'])}"
    )
    if options.wait:
        try:
            wait_loaded(management, model, log, version)
        except LoadFailed:
            management.unregister(model, version)
            raise
        out.print(f"{model}: ready")
    return 0


def _find_registered(options: argparse.Namespace, management: Management, archive: str) -> str | None:
    """Return the version that a killed command has registered; None unless it is of the same archive, and answers."""
    model, path = options.model, options.model_store / archive
    with contextlib.suppress(ClientError):
        version, own = describe_archive(path).version, read_fingerprint(path)
        found = management.describe(model, version)
        is_same = options.batch_size in (None, found["batchSize"])
        if own and is_same and options.max_batch_delay in (None, found["maxBatchDelay"]):
            management.wait_ready(model, float(found["startupTimeout"]), version)
            return version if options.inference.fingerprint(model, version) == own else None
    return None


@on_each
def scale(options: argparse.Namespace, management: Management) -> int:
    management.scale(options.model, options.workers)
    out.print(f"{options.model}: scaled to {_workers(options.workers)}")
    return _wait_ready(options, management) if options.wait else 0


@on_each
def wait_ready(options: argparse.Namespace, management: Management) -> int:
    return _wait_ready(options, management)


def _wait_ready(options: argparse.Namespace, management: Management) -> int:
    management.wait_ready(options.model, options.timeout)
    out.print(f"{options.model}: ready")
    return 0


def describe(options: argparse.Namespace, nodes: Nodes, client: Client) -> int:
    """Show versions, batch parameters, workers and queue of models on every node; for one model, also its metadata."""
    is_one = len(nodes.by_name) == 1

    def call(name: str, management: Management) -> list[Json]:
        versions = _describe_versions(options, management)
        if not options.json:
            # Printed now, since another node may fail.
            if not is_one:
                out.print(f"{name}:")
            rows = [each for each in versions if "error" not in each]
            out.print(_model_table(rows) if versions else "no model is registered")
            for each in versions:
                if "error" in each:
                    out.print(f"{each['modelName']}: not described: {each['error']}")
                elif (maker := read_maker(_find_archive(options.model_store, each))) and maker != VERSION:
                    name = f"{each['modelName']} {each['modelVersion']}"
                    out.print(f"{name}: built with {maker}, installed is {VERSION}; to upgrade, build it again")
        return versions

    versions = [(name, each) for name, listed in nodes.each_named(call).items() for each in listed]
    found = _read_metadata(client, options.model, [one["modelVersion"] for _, one in versions]) if options.model else {}
    if options.json:
        documents = []
        for name, each in versions:
            metadata = found.get(each.get("modelVersion", ""))
            more = {"metadata": asdict(metadata) if metadata else None} if found else {}
            documents.append({**({} if is_one else {"node": name}), **each, **more})
        out.file.write(json.dumps(documents, indent=2) + "\n")  # the console would colour it
        return 0
    for version, metadata in found.items():
        if metadata is not None:
            words = "" if len(found) == 1 else f"version {version}: "
            out.print(f"\n{words}max_batch_size {metadata.max_batch_size or 'unknown'}")
            if metadata.precision:
                out.print(f"precision {metadata.precision}")
            for precision, proof in metadata.proofs.items():
                out.print(f"{precision} against fp32: {_format_proof(proof)}")
            out.print(_tensor_table(metadata))
    return 0


def _find_archive(store: Path, version: Mapping[str, object]) -> Path:
    return find_version(store / str(version["modelUrl"]), str(version["modelVersion"]))


def _describe_versions(options: argparse.Namespace, management: Management) -> list[Json]:
    found: list[Json] = []
    for model in [options.model] if options.model else management.models():
        try:
            default = management.describe(model)["modelVersion"]
            versions = [management.describe(model, version) for version in management.versions(model)]
            found += [{**each, "isDefault": each["modelVersion"] == default} for each in versions]
        except ManagementError as error:
            if options.model or error.status == 0:  # TorchServe lists names with a slash, but has no path for them
                raise
            found.append({"modelName": model, "error": error.message})
    return found


def _read_metadata(client: Client, model: str, versions: Iterable[str]) -> dict[str, Metadata | None]:
    """Return the metadata of each version of a model; None for one that does not respond in time."""
    ends_s = time.monotonic() + METADATA_S
    found: dict[str, Metadata | None] = dict.fromkeys(versions)
    for version in found:
        if (left_s := ends_s - time.monotonic()) > 0:
            with contextlib.suppress(ClientError):
                found[version] = client.metadata(model, version, timeout_s=left_s)
    return found


def rollout(options: argparse.Namespace, nodes: Nodes, _: Client) -> int:
    archive = options.archive if options.to is None else f"{options.model}-{options.to}.mar"
    new = Registration(options.batch_size, options.max_batch_delay, archive)
    is_canary = options.canary is not None or options.promote or options.abort
    if new == Registration() and not is_canary:
        name = options.model
        raise InvalidPayload(
            f"{name}: the rollout changes nothing: set --batch-size or --max-batch-delay, or raise `version` of {name} "
            f"in the model list, build it again, and pass --archive {name}.mar"
        )
    if new != Registration() and (options.promote or options.abort):
        raise InvalidPayload("--promote and --abort keep the canary's registration: omit --archive, --batch-size, ...")
    rollout = Rollout(nodes, options.model_store, _find_gateway(options, nodes), options.logs, out.print)
    if options.canary is not None:
        rollout.try_canary(options.model, new, options.canary, options.canary_header)
    elif options.promote:
        rollout.promote(options.model)
    elif options.abort:
        rollout.abort(options.model)
    else:
        rollout.run(options.model, new)
    return 0


def unregister(options: argparse.Namespace, nodes: Nodes, _: Client) -> int:
    Rollout(nodes, options.model_store, _find_gateway(options, nodes), report=out.print).unregister(options.model)
    return 0


def _find_gateway(options: argparse.Namespace, nodes: Nodes) -> Gateway | None:
    return find_gateway([management.url for management in nodes.by_name.values()], options.gateway)


def _workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def _model_table(versions: list[Json]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("model", "version", "batch_size", "max_batch_delay", "workers", "waiting"):
        table.add_column(name, justify="right" if name in ("batch_size", "max_batch_delay", "waiting") else "left")
    for each in versions:
        statuses = [worker["status"] for worker in each["workers"]]
        workers = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
        table.add_row(
            each["modelName"],
            each["modelVersion"] + (" (default)" if each["isDefault"] else ""),
            str(each["batchSize"]),
            f"{each['maxBatchDelay']} ms",
            workers or each.get("state", "none"),
            str(each["jobQueueStatus"]["pendingRequests"]),
        )
    return table


def _format_proof(proof: Mapping[str, object]) -> str:
    change = proof.get("largest_change")
    words = "" if change is None else f", largest change {change:.4f}"
    return f"{proof.get('measure')} {proof.get('agreement', 0):.4f} of {proof.get('samples')} samples{words}"


def _tensor_table(metadata: Metadata) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("tensor", "name", "datatype", "shape"):
        table.add_column(name)
    for kind, tensors in (("input", metadata.inputs), ("output", metadata.outputs)):
        for tensor in tensors:
            table.add_row(kind, tensor.name, tensor.datatype, str(list(tensor.shape)))
    return table
