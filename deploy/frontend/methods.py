"""The methods of each path, as the gateway's routes have them (deploy/gateway/envoy/route.yaml). Pure."""

import re

from deploy.frontend.http import Refused
from deploy.protocol.description import APIS, UNKNOWN, UNKNOWN_MODEL
from deploy.protocol.errors import RequestError

NOT_SERVED = "This path or this model is not served."
READS = ("GET", "HEAD")
# TorchServe's predictions accept any method; the gateway passes those of its clients on.
_PREDICTIONS = re.compile(r"/predictions/.+")
_POSTS = re.compile(r"/v2/models/.+/infer|/v1/models/.+:predict")


def check_method(method: str, path: str) -> None:
    """Refuse a method that a path does not have: 404, in the form of the path's protocol."""
    if path in APIS:
        if method != "POST":
            raise Refused(404, UNKNOWN_MODEL, UNKNOWN)
        return
    is_inference = bool(_POSTS.fullmatch(path))
    allowed = ("GET", "POST", "PUT") if _PREDICTIONS.fullmatch(path) else ("POST",) if is_inference else READS
    if method in allowed:
        return
    if path == "/v2" or path.startswith("/v2/"):
        raise RequestError(404, f"{method[:20]} {path[:200]}: unknown route")
    raise Refused(404, "NotFound", NOT_SERVED)
