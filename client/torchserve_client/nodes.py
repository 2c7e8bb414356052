"""Several TorchServes that serve the same models: one call to each, and an error that names those that failed.

nodes.json -> Nodes -> each(call) -> results by node, or NodesFailed
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torchserve_client.client import Client
from torchserve_client.errors import ClientError, InvalidPayload, NodesFailed
from torchserve_client.management import Management

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Nodes:
    """The APIs of several servers, by the name of the node.

    Attributes:
        by_name: their management APIs.
        logs: their folders of logs, where known.
        inference: their inference APIs, where known.
    """

    by_name: Mapping[str, Management]
    logs: Mapping[str, Path] = field(default_factory=dict)
    inference: Mapping[str, Client] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, **options: Any) -> "Nodes":
        """Address the servers of a nodes.json, each with its own keys where it has a token_file.

        Args:
            path: what `make serve` writes: [{"name", "inference", "management", "token_file"}, ...].
            options: verify and cert, as of `Management`.

        Raises:
            InvalidPayload: it is no such file, or a token_file is none.
            OSError: it cannot be read.
        """
        try:
            nodes = {str(node["name"]): node for node in json.loads(path.read_text(encoding="utf-8"))}
            urls = {name: (str(node["management"]), node.get("inference")) for name, node in nodes.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidPayload(f"{path}: not a nodes.json of make serve") from error
        if not nodes:
            raise InvalidPayload(f"{path}: no node in it")
        keys = {name: read_keys(node.get("token_file")) for name, node in nodes.items()}
        logs = {name: path.parent / name / "logs" for name in nodes}
        return cls(
            {name: Management(url, token=keys[name].get("management"), **options) for name, (url, _) in urls.items()},
            {name: folder for name, folder in logs.items() if folder.is_dir()},
            {name: Client(url, token=keys[name].get("inference"), **options) for name, (_, url) in urls.items() if url},
        )

    def each(self, call: Callable[[Management], Result]) -> dict[str, Result]:
        """Call every node, one after the other; one that fails does not keep the call from the others.

        Args:
            call: called with the management API of each node.

        Returns:
            A node's name -> what the call returned.

        Raises:
            NodesFailed: some failed; the others have done it. Of a single node its own error is raised.
        """
        return self.each_named(lambda _, management: call(management))

    def each_named(self, call: Callable[[str, Management], Result]) -> dict[str, Result]:
        """Do as `each`, with the name of the node for the call."""
        results: dict[str, Result] = {}
        errors: dict[str, ClientError] = {}
        for name, management in self.by_name.items():
            try:
                results[name] = call(name, management)
            except ClientError as error:
                if len(self.by_name) == 1:
                    raise
                errors[name] = error
        if errors:
            raise NodesFailed(errors, list(results))
        return results

    def close(self) -> None:
        """Release every connection."""
        for management in self.by_name.values():
            management.close()
        for client in self.inference.values():
            client.close()


def read_keys(path: str | Path | None) -> dict[str, str]:
    """Read the tokens in TorchServe's key_file.json, by API; none where there is no file.

    Raises:
        InvalidPayload: it is no such file.
        OSError: it cannot be read.
    """
    if path is None:
        return {}
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return {api: str(entry["key"]) for api, entry in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidPayload(f"{path}: not a key_file.json of TorchServe") from error
