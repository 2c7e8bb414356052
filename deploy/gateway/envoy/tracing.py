"""W3C trace context: every request has a trace that clients, gateway and nodes agree on.

    traceparent of a client, where valid ─┐
    or a new trace ───────────────────────┴> the gateway's own span -> traceparent to the node, access log

Envoy's OpenTelemetry tracer does it without a collector: it reads, makes and writes the headers, and exports nothing.
https://www.w3.org/TR/trace-context/
"""

from deploy.gateway.envoy.clusters import CONTROL
from deploy.gateway.envoy.resources import Resource, typed

# Of {0}, a header: version 00 with its four parts of hexadecimal digits, neither trace nor parent zero. CEL bounds the
# size of a regular expression, so what each part consists of and where it ends are two questions; \\C is any byte.
VALID = " && ".join(
    (
        "{0}.size() == 55",
        "{0}.matches('^00-[0-9a-f]+-[0-9a-f]+-[0-9a-f]+$')",
        r"{0}.matches('^\\C{{35}}-\\C{{16}}-')",
        "!{0}.startsWith('00-" + "0" * 32 + "')",
        "!{0}.contains('-" + "0" * 16 + "-')",
    )
)
# What was found good waits under these names; what clients send under them is taken away first.
CHECKED = {"traceparent": "x-envoy-traceparent", "tracestate": "x-envoy-tracestate"}


def only_valid_trace() -> list[Resource]:
    """Make the mutations that take a trace away which is none, before the tracer sees it; its state goes with it."""
    parent = "request.headers['traceparent']"
    found = {
        "traceparent": f"'traceparent' in request.headers && {VALID.format(parent)} ? {parent} : ''",
        "tracestate": (
            f"'{CHECKED['traceparent']}' in request.headers && 'tracestate' in request.headers"
            " ? request.headers['tracestate'] : ''"
        ),
    }
    return [
        *({"remove": name} for name in CHECKED.values()),
        *({"append": _set(CHECKED[name], f"%CEL({expression})%")} for name, expression in found.items()),
        *({"remove": name} for name in CHECKED),
        *({"append": _set(name, f"%REQ({checked})%")} for name, checked in CHECKED.items()),
        *({"remove": name} for name in CHECKED.values()),
    ]


def _set(name: str, value: str) -> Resource:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        "keep_empty_value": False,
    }


def tracing() -> Resource:
    """Make the fields of the connection manager."""
    return {
        "tracing": {
            "provider": typed(
                "envoy.tracers.opentelemetry",
                "envoy.config.trace.v3.OpenTelemetryConfig",
                service_name="torchserve-gateway",
                # The tracer wants somebody to export to; since it samples nothing, nothing is ever sent.
                http_service={"http_uri": {"uri": "http://nobody/", "cluster": CONTROL, "timeout": "1s"}},
                sampler=typed(
                    "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
                    "envoy.extensions.tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
                    sampling_percentage={"numerator": 0, "denominator": "HUNDRED"},
                ),
            ),
        },
        # A client's X-Request-Id stays as it is: Envoy would write into it whether it traces.
        "request_id_extension": {
            "typed_config": typed(
                "",
                "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                pack_trace_reason=False,
                use_request_id_for_trace_sampling=False,
            )["typed_config"]
        },
    }
