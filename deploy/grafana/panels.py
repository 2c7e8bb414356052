"""What the dashboard shows: rows of panels, each with its queries. Plain data.

ROWS -> dashboard.py: the JSON that Grafana reads
     -> picture.py:   the same panels, drawn without Grafana

Labels: handlers have `ModelName` and `ModelVersion`, TorchServe `model_name`, Envoy `envoy_cluster_name`, the control
process `model` and `version`. `$model`, `$version` and `$node` are the dashboard's variables; `${model:pipe}` is the
first without escapes, so that the dot of a name matches the underscore that Envoy makes of it.
"""

from dataclasses import dataclass

HANDLER = 'ModelName=~"$model",ModelVersion=~"$version",node=~"$node"'
TORCHSERVE = 'model_name=~"$model",node=~"$node"'
CLUSTER = 'envoy_cluster_name!="control",envoy_cluster_name=~"(${model:pipe})(/.*)?"'
CONTROL = 'model=~"$model",version=~"$version"'
RULE = 'model=~"$model"'


@dataclass(frozen=True, slots=True)
class Query:
    """One query of PromQL, and the legend of each series that it gives."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title, description: what is shown, and what to think of it.
        unit: Grafana's name of it: reqps, s, percentunit, short, bytes.
        kind: timeseries, stat or heatmap.
        width, height: on a grid of 24 columns.
        stacked: whether the series add up.
        thresholds: from which value on a stat is orange, and red; empty for neither.
        is_low_bad: whether it is so below these values.
        is_quiet: whether no data is what a healthy server has, since a counter appears with its first event.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    thresholds: tuple[float, ...] = ()
    is_low_bad: bool = False
    is_quiet: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _rate(metric: str, by: str, labels: str = HANDLER) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, labels: str = HANDLER, by: str = "le") -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', by, labels)})"


def _mean(metric: str) -> str:
    rates = (f"sum(rate({metric}_{part}{{{HANDLER}}}[$__rate_interval]))" for part in ("sum", "count"))
    return " / ".join(rates)


def _model(expression: str) -> str:
    """Give Envoy's series the label `model`; versions of one model are summed."""
    return f'sum by (model) (label_replace({expression}, "model", "$1", "envoy_cluster_name", "([^/]+).*"))'


_NOW = Row(
    "Now",
    (
        Panel(
            "Nodes that answer",
            "Of the nodes that the gateway knows, the share that gave its metrics. Alert NodeDown.",
            (Query("avg(max by (node) (gateway_node_up))"),),
            "percentunit", "stat", 4, 4, thresholds=(0.99, 0.5), is_low_bad=True,
        ),
        Panel(
            "Workers READY",
            "Of the workers that there should be. Alerts WorkersNotReady, ModelUnavailable.",
            (Query(f"sum(gateway_workers_ready{{{CONTROL}}}) / sum(gateway_workers{{{CONTROL}}})"),),
            "percentunit", "stat", 4, 4, thresholds=(0.99, 0.5), is_low_bad=True,
        ),
        Panel(
            "Requests",
            "Answers of the nodes to clients, each second.",
            (Query(f"sum(rate(envoy_cluster_upstream_rq_completed{{{CLUSTER}}}[$__rate_interval]))"),),
            "reqps", "stat", 4, 4,
        ),
        Panel(
            "Refused",
            "Share of requests answered 429 or 503, five minutes. Alert RefusalShare from 5 %.",
            (Query(f"max(model:refusal_ratio:rate5m{{{RULE}}})"),),
            "percentunit", "stat", 4, 4, thresholds=(0.01, 0.05),
        ),
        Panel(
            "p99",
            "Time of a request with a result, from its arrival at the worker to its answer.",
            (Query(_quantile(0.99, "handler_request_seconds")),),
            "s", "stat", 4, 4,
        ),
        Panel(
            "Burn rate",
            "How many times faster than it may the worst model spends its error budget, in an hour. 1 lasts the month.",
            (Query(f"max(model:error_ratio:rate1h{{{RULE}}}) / on () group_left () (1 - slo:objective:ratio)"),),
            "short", "stat", 4, 4, thresholds=(1, 6),
        ),
    ),
)  # fmt: skip

_TRAFFIC = Row(
    "Traffic and errors",
    (
        Panel(
            "Requests by model",
            "Answers of the nodes to clients, each second, by Envoy's count.",
            (Query(_model(f"rate(envoy_cluster_upstream_rq_completed{{{CLUSTER}}}[$__rate_interval])"), "{{model}}"),),
            "reqps",
        ),
        Panel(
            "Answers by status",
            "HTTP statuses of the nodes' answers; 503 of a model that is READY nowhere is among them.",
            (
                Query(
                    f"sum by (envoy_response_code) (rate(envoy_cluster_upstream_rq{{{CLUSTER}}}[$__rate_interval]))",
                    "{{envoy_response_code}}",
                ),
            ),
            "reqps", stacked=True,
        ),
        Panel(
            "In flight",
            "Requests that nodes have and have not answered; the signal that KEDA scales on.",
            (Query(_model(f"envoy_cluster_upstream_rq_active{{{CLUSTER}}}"), "{{model}}"),),
        ),
        Panel(
            "Refusals by reason",
            "What adaptive workers turned down. A full queue of TorchServe's own is a 503 among the statuses.",
            (Query(_rate("handler_refusals_total", "ModelName, Reason"), "{{ModelName}} {{Reason}}"),),
            "reqps", is_quiet=True,
        ),
        Panel(
            "Item errors by type",
            "Items without a result. InvalidX are the clients' own; InternalError and OutOfMemory raise ModelErrors.",
            (Query(_rate("handler_item_errors_total", "Type"), "{{Type}}"),),
            "short", stacked=True, is_quiet=True,
        ),
        Panel(
            "Deadline misses",
            "Share of answers after their deadline; adaptive mode. Alert DeadlineMisses from 5 %.",
            (
                Query(
                    f"{_rate('handler_deadline_misses_total', 'ModelName')} / "
                    f"{_rate('handler_requests_total', 'ModelName')}",
                    "{{ModelName}}",
                ),
            ),
            "percentunit", is_quiet=True,
        ),
    ),
)  # fmt: skip

_LATENCY = Row(
    "Latency",
    (
        Panel(
            "Latency in the worker",
            "Percentiles of requests with a result, from arrival at the worker to answer. Interpolated between a "
            "histogram's buckets.",
            tuple(Query(_quantile(q, "handler_request_seconds"), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)),
            "s",
        ),
        Panel(
            "Latency at the gateway",
            "Percentiles from the request as Envoy sent it to a node to the answer: TorchServe's queue is in them.",
            tuple(
                Query(f"{_quantile(q, 'envoy_cluster_upstream_rq_time', CLUSTER)} / 1000", f"p{q * 100:g}")
                for q in (0.5, 0.9, 0.99)
            ),
            "s",
        ),
        Panel(
            "Where the time goes",
            "Means of each part. Queue is TorchServe's, of a request; decode and wait are of an item, forward of a "
            "micro-batch, encode of an answer.",
            (
                Query(
                    f"sum(rate(ts_queue_latency_microseconds{{{TORCHSERVE}}}[$__rate_interval])) / 1e6 / "
                    f"sum(rate(ts_inference_requests_total{{{TORCHSERVE}}}[$__rate_interval]))",
                    "queue",
                ),
                *(Query(_mean(f"handler_{part}_seconds"), part) for part in ("decode", "wait", "forward", "encode")),
            ),
            "s", stacked=True,
        ),
    ),
)  # fmt: skip

_BATCHING = Row(
    "Batching",
    (
        Panel(
            "Batch size",
            "How many items went through the model together. Dark at the top: batches are full. Dark at 1 under "
            "load: nothing is batched.",
            (Query(_rate("handler_batch_size_bucket", "le"), "{{le}}"),),
            "short", "heatmap", 8, 9,
        ),
        Panel(
            "Engine busy share",
            "Seconds of engine in each second: 1 is all that a worker has. Above 0.75 for long, add nodes.",
            (
                Query(
                    f"({_rate('handler_engine_busy_seconds_total', 'node, ModelName')})"
                    f" or ({_rate('handler_forward_seconds_sum', 'node, ModelName')})",
                    "{{ModelName}} {{node}}",
                ),
            ),
            "percentunit", width=8, height=9,
        ),
        Panel(
            "Micro-batches and items",
            "Items each second, and how many of them share a micro-batch on average.",
            (
                Query(_rate("handler_items_total", "ModelName"), "{{ModelName}} items/s"),
                Query(
                    f"{_rate('handler_batch_size_sum', 'ModelName')} / "
                    f"{_rate('handler_batch_size_count', 'ModelName')}",
                    "{{ModelName}} mean batch",
                ),
            ),
            width=8, height=9,
        ),
        Panel(
            "Queue age",
            "Age of the oldest item that is ready, as nine of ten micro-batches start; adaptive mode. Alert QueueAge "
            "from 1 s.",
            (Query(_quantile(0.9, "handler_queue_age_seconds", by="le, ModelName"), "{{ModelName}} p90"),),
            "s",
        ),
        Panel(
            "Waiting in TorchServe",
            "Requests in TorchServe's queue of a model, on all nodes, looked at every two seconds.",
            (Query(f"max by (node, model) (gateway_queued_requests{{{CONTROL}}})", "{{model}} {{node}}"),),
        ),
        Panel(
            "Took over predicted",
            "Median of what a micro-batch took over what the scheduler expected; adaptive mode. Far from 1: something "
            "else takes the machine.",
            (Query(_quantile(0.5, "handler_forward_prediction_ratio", by="le, node"), "{{node}}"),),
        ),
    ),
)  # fmt: skip

_NODES = Row(
    "Nodes and gateway",
    (
        Panel(
            "Workers READY by node",
            "As each node's management API says, asked every two seconds.",
            (Query(f"max by (node, model) (gateway_workers_ready{{{CONTROL}}})", "{{model}} {{node}}"),),
        ),
        Panel(
            "Worker restarts",
            "Workers that were seen with another process, in 15 minutes. Alert WorkerRestarts from three.",
            (
                Query(
                    f"max by (node, model) (increase(gateway_worker_restarts_total{{{CONTROL}}}[15m]))",
                    "{{model}} {{node}}",
                ),
            ),
        ),
        Panel(
            "Heap",
            "Old generation of a node's Java after its last collection. Alert HeapNearlyFull from 85 %.",
            (
                Query(
                    'max by (node) (frontend_heap_used_bytes{node=~"$node"}) / '
                    'max by (node) (frontend_heap_max_bytes{node=~"$node"})',
                    "{{node}}",
                ),
            ),
            "percentunit",
        ),
        Panel(
            "Clients' connections",
            "Open connections of each port of the gateways.",
            (
                Query(
                    'sum by (envoy_http_conn_manager_prefix) '
                    '(envoy_http_downstream_cx_active{envoy_http_conn_manager_prefix=~"http|grpc"})',
                    "{{envoy_http_conn_manager_prefix}}",
                ),
            ),
        ),
        Panel(
            "Gateway's memory",
            "Heap of each Envoy. Alert GatewayMemory.",
            (Query("max by (instance) (envoy_server_memory_heap_size)", "{{instance}}"),),
            "bytes",
        ),
        Panel(
            "Error budget burn",
            "How many times faster than it may the worst model spends its budget. Alerts from 14.4 in an hour, 6 in "
            "six, 1 in three days.",
            tuple(
                Query(
                    f"max(model:error_ratio:rate{window}{{{RULE}}}) / on () group_left () (1 - slo:objective:ratio)",
                    window,
                )
                for window in ("1h", "6h", "3d")
            ),
        ),
    ),
)  # fmt: skip

ROWS = (_NOW, _TRAFFIC, _LATENCY, _BATCHING, _NODES)
