"""A request's headers, and the content type of each part of its body. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache

CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*[\"']?([^;\"'\s]*)")
UTF8_CHARSETS = ("", "utf-8", "utf8")


class Headers(dict[str, str]):
    """A request's headers by their names in lower case."""

    __slots__ = ("sent", "types")

    sent: Mapping[str, object]

    types: Mapping[str, str]  # the content type of each field of its form, or of its body, by the field's name

    @property
    def is_grpc(self) -> bool:
        """Whether the request arrived by TorchServe's own gRPC, which has no headers."""
        return not self


def read_headers(sent: Mapping[str, object]) -> Headers:
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


def content_type(headers: Headers, name: str) -> tuple[str, str]:
    """Return the media type and charset of one field in lower case; "" if the client stated none."""
    media_type, charset = _media_type(headers.types.get(name, ""))
    # TorchServe removes the parameters of a body's type; the request's header contains them.
    sent = headers.get("content-type") if media_type and not charset else None
    of_header = _media_type(sent) if sent else ("", "")
    return of_header if of_header[0] == media_type else (media_type, charset)


def is_utf8(content_type: str) -> bool:
    """Whether a content type has UTF-8's character set, or none."""
    return _media_type(content_type)[1] in UTF8_CHARSETS


def has_two_types(headers: Headers, name: str) -> bool:
    """Whether a request has two Content-Type headers: TorchServe types the body by one, and passes the other on."""
    own, other = (_media_type(each)[0] for each in (headers.types.get(name, ""), headers.get("content-type", "")))
    return bool(own and other) and own != other and not other.startswith(("multipart/", "application/x-www-form"))


@lru_cache(maxsize=256)
def _media_type(content_type: str) -> tuple[str, str]:
    media_type, _, parameters = content_type.lower().partition(";")
    found = CHARSET.search(parameters)
    return media_type.strip(), found[1] if found else ""
