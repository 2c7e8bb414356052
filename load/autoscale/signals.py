"""What KEDA asks Prometheus: one number for a model, summed over its replicas. Pure.

    model -> Signal: a query in PromQL, of metrics that the edge and the nodes have

A query answers with exactly one number as long as an edge is scraped, and with none where no edge is: with
ignoreNullValues "false" KEDA then knows that it knows nothing. Counters that nothing has counted yet are no series at
all; they are taken for 0 times the number of the cluster's endpoints, which every edge has from its start.

Envoy's counters are each edge's own, and summed. What a node says of itself may be scraped by several: the maximum by
node is taken first.
"""

import re

# What Prometheus' rates and means are taken over, in its own notation: four scrapes of 15 s, two of which may fail.
WINDOW = "1m"


def clusters(model: str) -> str:
    """Select the clusters of a model, of all its versions; a dot of a name is an underscore to Envoy's statistics."""
    # PromQL's string takes the regular expression's backslashes doubled.
    name = re.escape(model.replace(".", "_")).replace("\\-", "-").replace("\\", "\\\\")
    return f'envoy_cluster_name=~"{name}(/.+)?"'


def _zero(model: str) -> str:
    """Give 0 where an edge is scraped, and nothing where none is."""
    return f"0 * sum(envoy_cluster_membership_total{{{clusters(model)}}})"


def in_flight(model: str) -> str:
    """Requests that the edges have sent to replicas and not answered yet, as a mean over the window."""
    return f"sum(avg_over_time(envoy_cluster_upstream_rq_active{{{clusters(model)}}}[{WINDOW}])) or {_zero(model)}"


def busy(model: str, *, is_adaptive: bool) -> str:
    """The shares of time that engines are busy, in percent, summed over replicas."""
    seconds = "handler_engine_busy_seconds_total" if is_adaptive else "handler_forward_seconds_sum"
    rate = f'rate({seconds}{{ModelName="{model}"}}[{WINDOW}])'
    return f"100 * sum(max by (node, ModelVersion) ({rate})) or {_zero(model)}"


def demand(model: str) -> str:
    """Requests per second that are asked for, answered or refused, while any are refused; otherwise 0.

    Refusals alone say how many replicas are missing, and not how many there should be, which is what KEDA divides for.
    """
    selected = clusters(model)
    refused = f'sum(rate(envoy_cluster_upstream_rq{{{selected},envoy_response_code=~"429|503"}}[{WINDOW}]))'
    # By their answers: those of Envoy itself, where no replica is READY, are not in envoy_cluster_upstream_rq_total.
    asked = f"sum(rate(envoy_cluster_upstream_rq{{{selected}}}[{WINDOW}]))"
    return f"{asked} * ({refused} > bool 0) or {_zero(model)}"
