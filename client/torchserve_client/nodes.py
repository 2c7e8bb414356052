"""Several TorchServes that serve the same models: one call to each, and an error that names the failed nodes.

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
        by_name: management APIs.
        logs: folders of logs, if known.
        inference: inference APIs, if known.
    """

    by_name: Mapping[str, Management]
    logs: Mapping[str, Path] = field(default_factory=dict)
    inference: Mapping[str, Client] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, **options: Any) -> "Nodes":
        """Read the servers of a nodes.json; a node with a token_file gets its tokens.

        Args:
            path: file that `make serve` writes: [{"name", "inference", "management", "token_file"}, ...].
            options: verify and cert, as in `Management`.

        Returns:
            The nodes; nothing is sent yet.

        Raises:
            InvalidPayload: not a valid nodes.json or token_file.
            OSError: a file cannot be read.
        """
        try:
            nodes = {str(node["name"]): node for node in json.loads(path.read_text(encoding="utf-8"))}
            urls = {name: (str(node["management"]), node.get("inference")) for name, node in nodes.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidPayload(f"{path}: not a nodes.json of make serve") from error
        if not nodes:
            raise InvalidPayload(f"{path}: contains no node")
        managed, inferred = {}, {}
        for name, (management_url, url) in urls.items():
            tokens = read_tokens(nodes[name].get("token_file"))
            managed[name] = Management(management_url, token=tokens.get("management"), **options)
            if url:
                inferred[name] = Client(url, token=tokens.get("inference"), **options)
        logs = {name: path.parent / name / "logs" for name in nodes}
        return cls(managed, {name: folder for name, folder in logs.items() if folder.is_dir()}, inferred)

    def each(self, call: Callable[[Management], Result]) -> dict[str, Result]:
        """Call every node, one after the other, even if one fails.

        Args:
            call: receives the management API of each node.

        Returns:
            A node's name -> the result of the call.

        Raises:
            NodesFailed: some nodes failed; the others did it.
            ClientError: the error of a single node.
        """
        return self.each_named(lambda _, management: call(management))

    def each_named(self, call: Callable[[str, Management], Result]) -> dict[str, Result]:
        """Call every node as `each` does; `call` receives the name of the node, too."""
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
        for management in self.by_name.values():
            management.close()
        for client in self.inference.values():
            client.close()


def read_tokens(path: str | Path | None) -> dict[str, str]:
    """Read the tokens in TorchServe's key_file.json, by API; None means no tokens."""
    if path is None:
        return {}
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        return {api: str(entry["key"]) for api, entry in document.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidPayload(f"{path}: not a key_file.json of TorchServe") from error
