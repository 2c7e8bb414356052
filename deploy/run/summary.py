"""The summary that `make serve` ends with: each model, where it is served, how to call it, and how to stop it all."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from deploy.models import ROOT
from deploy.run.machine import LocalNode
from deploy.run.nodes import shown
from torchserve_client.client import Client
from torchserve_client.errors import ClientError
from torchserve_client.metadata import Metadata


def rows(
    nodes: Sequence[LocalNode], models: Sequence[tuple[str, str]], calls: Sequence[str], response: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield names and values: of each model with the command that calls it, then of the nodes, which serve the same."""
    server = nodes[0].server
    url, config = server.settings.inference_url, server.config.resolve()
    with Client(url, token=server.key("inference")) as client:
        for (name, version), call in zip(models, calls, strict=True):
            described = server.management.describe(name, version)
            batch = f"batch_size {described['batchSize']}, max_batch_delay {described['maxBatchDelay']} ms"
            yield "Model", f"{name} {version}, {batch}, workers {len(described['workers'])}"
            # A handler that is not of this project may not answer for its metadata.
            with suppress(ClientError):
                served = client.metadata(name, version)
                yield "Precision", served.precision or "as exported"
                yield "Engine", served.platform.removeprefix("torchserve_")
                if (command := advice(served)) is not None:
                    yield "Faster", command
            yield "URL", f"{url}/predictions/{name}"
            yield "Try", call
    if response is not None:
        yield "Response", response
    if len(nodes) > 1:
        yield "Nodes", ", ".join(each.server.settings.inference_url for each in nodes)
    yield "Logs", ", ".join(f"{shown(each.server.logs)}/" for each in nodes)
    is_named = config.parent == ROOT and config.name != "config.properties"
    yield "Stop", f"make stop CONFIG={config.name.split('.')[1]}" if is_named else "make stop"


def advice(served: Metadata) -> str | None:
    """Return the command that adds int8 to a model that OpenVINO serves in fp32; None for any other."""
    if (served.platform, served.precision) != ("torchserve_openvino", "fp32"):
        return None
    return f"deploy/extras/environment.sh int8 && ./archive.sh {served.name} --precision int8 --calibrate FOLDER"
