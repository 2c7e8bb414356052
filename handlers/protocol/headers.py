"""A request's headers: read once from TorchServe's, with names in lower case. Pure."""

from collections.abc import Mapping
from typing import Any


class Headers(dict[str, str]):
    """A request's headers by their names in lower case."""

    __slots__ = ("sent", "types")

    sent: Mapping[str, Any]

    # The content type of each field of its form, or of its body, by the field's name.
    types: Mapping[str, str]

    @property
    def is_grpc(self) -> bool:
        """Whether the request arrived by TorchServe's own gRPC, which has no headers."""
        return not self


def read_headers(sent: Mapping[str, Any]) -> Headers:
    """Read a request's headers as TorchServe has them: values, and for each field {"content-type": value}.

    Clients choose the case of names, and TorchServe's own case depends on the path.
    """
    headers = Headers()
    headers.types, headers.sent = {}, sent
    for name, value in sent.items():
        if not isinstance(value, str):
            headers.types[name] = value.get("content-type", "") if isinstance(value, Mapping) else ""
        elif (lowered := name.lower()) == name or lowered not in headers:
            headers[lowered] = value
    return headers
