"""The summary of `make serve`: each model, its URL, the command that calls it, and the command that stops all nodes."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.archives.sources import list_requests
from deploy.models import MODEL_LIST, ROOT
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.server import Server
from deploy.places import HOME, STOP, WITH_CONFIG
from torchserve_client.client import Client
from torchserve_client.errors import ClientError


def rows(
    nodes: Sequence[LocalNode], models: Sequence[tuple[str, str]], calls: Sequence[str], response: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield names and values for each model with its call, then for the nodes; all nodes serve the same models."""
    server = nodes[0].server
    url = server.settings.inference_url
    with Client(url, token=server.key("inference")) as client:
        for (name, version), call in zip(models, calls, strict=True):
            description = server.management.describe(name, version)
            batch = f"batch_size {description['batchSize']}, max_batch_delay {description['maxBatchDelay']} ms"
            yield "Model", f"{name} {version}, {batch}, workers {len(description['workers'])}"
            with suppress(ClientError):  # a handler of another project may not return metadata
                metadata = client.metadata(name, version)
                yield "Precision", metadata.precision or "as exported"
                yield "Engine", metadata.platform.removeprefix("torchserve_")
            yield "URL", f"{url}/predictions/{name}"
            yield "Try", call
    if response is not None:
        yield "Response", response
    if len(nodes) > 1:
        yield "Nodes", ", ".join(each.server.settings.inference_url for each in nodes)
    yield "Logs", ", ".join(f"{shorten(each.server.logs)}/" for each in nodes)
    yield "Stop", call_stop(server.config.resolve()) if nodes[0].is_single else STOP


def call_stop(config: Path) -> str:
    """Return the command that stops a single server of a configuration; nodes are found by their folders."""
    name = config.name.removeprefix("config.").removesuffix(".properties")
    if config == ROOT / "config.properties":
        return STOP
    return f"{STOP} {WITH_CONFIG}{name if config == ROOT / f'config.{name}.properties' else shorten(config)}"


def calls(server: Server, models: Sequence[tuple[str, str]]) -> list[str]:
    """Return a curl command for a prediction of each model, with the server's token."""
    key = server.key("inference")
    header = f'-H "Authorization: Bearer {key}" ' if key else ""
    url = f"{server.settings.inference_url}/predictions"
    return [f"curl {header}{_sample_options(name)} {url}/{name}" for name, _ in models]


def _sample_options(name: str) -> str:
    """Return curl's options that send a sample of the example of that name, or a placeholder."""
    folder = MODEL_LIST.parent / name
    for path in sorted(folder.glob("*.jpg")):
        return f"-T {shorten(path)}"
    for path in list_requests(folder):
        return f'-H "Content-Type: application/json" -d @{shorten(path)}'
    return "-T FILE"


def shorten(path: Path) -> Path:
    return path.relative_to(HOME) if path.is_relative_to(HOME) else path
