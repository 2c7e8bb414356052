"""Several TorchServes that serve the same: one call to each, and an error that says which did not do it.

    nodes.json, or addresses -> Nodes -> each(call) -> results by node, or NodesFailed

A node that fails does not keep the call from the others.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from torchserve_client.errors import ClientError, InvalidPayload, NodesFailed
from torchserve_client.management import Management

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Nodes:
    """The management APIs of several servers.

    Attributes:
        by_name: a name of the node -> its management API.
        logs: a name -> its folder of logs, as far as they are known.
    """

    by_name: Mapping[str, Management]
    logs: Mapping[str, Path]

    @classmethod
    def at(cls, urls: Sequence[str], **options: Any) -> "Nodes":
        """Address servers, each named for its host and port.

        Args:
            urls: of their management APIs.
            options: those of `Management`, the same for all.
        """
        return cls({urlsplit(url).netloc or url: Management(url, **options) for url in urls}, {})

    @classmethod
    def read(cls, path: Path, **options: Any) -> "Nodes":
        """Address the servers of a nodes.json, each with its own key where it has a token_file.

        Args:
            path: what `make serve` writes: [{"name", "management", "token_file"}, ...].
            options: those of `Management`, but for the token.

        Raises:
            InvalidPayload: it is no such file, or a token_file is none.
            OSError: it cannot be read.
        """
        try:
            listed = json.loads(path.read_text(encoding="utf-8"))
            nodes = {str(node["name"]): (str(node["management"]), node.get("token_file")) for node in listed}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidPayload(f"{path}: not a nodes.json of make serve") from error
        if not nodes:
            raise InvalidPayload(f"{path}: no node in it")
        found = {name: Management(url, token=_token(file), **options) for name, (url, file) in nodes.items()}
        logs = {name: path.parent / name / "logs" for name in nodes}
        return cls(found, {name: folder for name, folder in logs.items() if folder.is_dir()})

    def each(self, call: Callable[[Management], Result]) -> dict[str, Result]:
        """Call every node, one after the other.

        Args:
            call: what is asked of a node.

        Returns:
            A node's name -> what the call gave.

        Raises:
            NodesFailed: some failed; the others have done it.
        """
        return self.each_named(lambda _, management: call(management))

    def each_named(self, call: Callable[[str, Management], Result]) -> dict[str, Result]:
        """Do as `each`, with the node's name for the call."""
        results: dict[str, Result] = {}
        errors: dict[str, ClientError] = {}
        for name, management in self.by_name.items():
            try:
                results[name] = call(name, management)
            except ClientError as error:
                errors[name] = error
        if errors:
            raise NodesFailed(errors, list(results))
        return results

    def close(self) -> None:
        """Let go of every connection."""
        for management in self.by_name.values():
            management.close()


def _token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return str(json.loads(Path(file).read_text(encoding="utf-8"))["management"]["key"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidPayload(f"{file}: not a key_file.json of TorchServe") from error
