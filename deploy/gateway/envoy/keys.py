"""Who may call, and how often: a key for each client, and a rate for each key."""

import math
from typing import Any

from deploy.gateway.envoy.resources import Resource, lua, typed
from deploy.gateway.envoy.routes import KEYS, OPEN_RATE
from deploy.gateway.settings import Key, Settings

CLIENT = "x-client"
# Requests a second, and at once, of all clients together for what needs no key: the page's files.
OPEN_PER_S, OPEN_BURST = 100, 500


def keys(settings: Settings) -> Resource | None:
    """Make the filter that asks for a key; None where there are none."""
    if not settings.keys:
        return None
    # Envoy's own filter for this, api_key_auth, is "not covered by the threat model" in 1.40.
    clients = ", ".join(f"[{_quoted(key.key)}] = {_quoted(key.client)}" for key in settings.keys)
    return lua("keys", f"local CLIENTS = {{{clients}}}\n", KEYS)


def _quoted(text: str) -> str:
    """Write a string of printable ASCII as Lua has it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def rates(settings: Settings) -> Resource | None:
    """Make the filter that holds each key to its rate; None where none has one."""
    limited = [key for key in settings.keys if key.requests_per_second is not None]
    if not limited:
        return None
    return _limit(
        "gateway.rates",
        {"max_tokens": 0xFFFFFFFF, "tokens_per_fill": 0xFFFFFFFF, "fill_interval": "1s"},
        always_consume_default_token_bucket=False,
        rate_limits=[{"actions": [{"request_headers": {"header_name": CLIENT, "descriptor_key": "client"}}]}],
        descriptors=[
            {"entries": [{"key": "client", "value": key.client}], "token_bucket": bucket(key)} for key in limited
        ],
    )


def open_rate() -> Resource:
    """Make the filter that bounds how often what needs no key is asked for; routes switch it on."""
    tokens = {"max_tokens": OPEN_BURST, "tokens_per_fill": OPEN_PER_S, "fill_interval": "1s"}
    return {**_limit(OPEN_RATE, tokens), "disabled": True}


def _limit(name: str, tokens: Resource, **config: Any) -> Resource:
    return typed(
        name,
        "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        stat_prefix=name.removeprefix("gateway."),
        filter_enabled=_always(),
        filter_enforced=_always(),
        # One bucket for all connections and threads of a client.
        local_rate_limit_per_downstream_connection=False,
        rate_limited_as_resource_exhausted=True,
        token_bucket=tokens,
        **config,
    )


def bucket(key: Key) -> Resource:
    """Make a client's bucket of requests: how many at once, and how many come back in which time."""
    rate = key.requests_per_second or 1.0
    tokens = max(1, round(rate))
    return {
        "max_tokens": key.burst or max(1, math.ceil(rate)),
        "tokens_per_fill": tokens,
        "fill_interval": f"{tokens / rate:.3f}s",
    }


def _always() -> Resource:
    return {"default_value": {"numerator": 100, "denominator": "HUNDRED"}, "runtime_key": "gateway.rates"}
