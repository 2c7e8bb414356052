"""The summary that `make serve` ends with: each model, where it is served, how to call it, and how to stop it all."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from deploy.models import ROOT
from deploy.run.machine import LocalNode
from deploy.run.nodes import shown
from deploy.run.server import Server
from torchserve_client.client import Client
from torchserve_client.errors import ClientError
from torchserve_client.metadata import Metadata

# Platform of a model's metadata -> name of the engine.
ENGINES = {
    "torchserve_openvino": "OpenVINO",
    "torchserve_torch": "PyTorch",
    "torchserve_ctranslate2": "CTranslate2",
    "torchserve_onnxruntime": "ONNX Runtime",
}


def rows(
    nodes: Sequence[LocalNode], models: Sequence[tuple[str, str]], calls: Sequence[str], response: str | None = None
) -> Iterator[tuple[str, str]]:
    """Yield names and values of the summary.

    Args:
        nodes: of one configuration, which all serve the same models.
        models: name and version of each.
        calls: a command for each that requests a prediction.
        response: the response to the last of them, if it was sent.

    Raises:
        ServerError: the file of keys cannot be used.
        ManagementError: the server does not describe a model.
    """
    server = nodes[0].server
    with Client(server.settings.inference_url, token=server.key("inference")) as client:
        for (name, version), call in zip(models, calls, strict=True):
            yield "Model", f"{name} {version}, {_batching(server, name, version)}"
            # A handler that is not of this project may not answer for its metadata.
            with suppress(ClientError):
                served = client.metadata(name, version)
                yield "Precision", served.precision or "as exported"
                yield "Engine", ENGINES.get(served.platform, served.platform)
                if (command := advice(served)) is not None:
                    yield "Faster", command
            yield "URL", f"{server.settings.inference_url}/predictions/{name}"
            yield "Try", call
    if response is not None:
        yield "Response", response
    if len(nodes) > 1:
        yield "Nodes", ", ".join(each.server.settings.inference_url for each in nodes)
    yield "Logs", ", ".join(f"{shown(each.server.logs)}/" for each in nodes)
    yield "Stop", f"make stop{_config(server)}"


def advice(served: Metadata) -> str | None:
    """Return the command that adds int8 to a model that OpenVINO serves in fp32; None for any other."""
    if (served.platform, served.precision) != ("torchserve_openvino", "fp32"):
        return None
    command = f"./archive.sh {served.name} --precision int8 --calibrate FOLDER"
    return f"deploy/extras/environment.sh int8 && {command}  (docs/precision.md)"


def _batching(server: Server, name: str, version: str) -> str:
    described = server.management.describe(name, version)
    workers = len(described["workers"])
    return (
        f"batch_size {described['batchSize']}, max_batch_delay {described['maxBatchDelay']} ms, "
        f"{workers} worker{'' if workers == 1 else 's'}"
    )


def _config(server: Server) -> str:
    path = server.config.resolve()
    if path.parent != ROOT or path.name == "config.properties":
        return ""
    return f" CONFIG={path.name.split('.')[1]}"
