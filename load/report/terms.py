"""Defines every reported number in one line, with its unit: the legend of the table and of the page."""

# What a request goes through in the server, in order; these are the keys of a run file's `server_ms`.
STAGES = ("queue", "decode", "wait", "forward", "encode")

TERMS = {
    "concurrency": "clients, each of which sends its next request when its answer has come (closed loop)",
    "rate": "requests per second that were due by the schedule (open loop)",
    "throughput": "1/s: requests answered 200, and rightly where answers are checked, per second of the window",
    "goodput": "1/s: the same of requests answered within the latency threshold",
    "latency": "ms: from the moment a request was due to the last byte of its answer; failures are not in it",
    "p99": "ms: 99 of 100 answers took no longer; likewise p50, p90, p95, p99.9",
    "in time": "%: share of all requests, failures included, that were answered well and within the threshold",
    "status": "requests by HTTP status; those without any answer by reason",
    "batch": "items of a micro-batch on average: by the answers' Server-Timing, or by the server's counters",
    "queue": "ms: mean time in TorchServe's queue, by its own counters, warm-up included",
    "decode": "ms: mean time to decode a request's items",
    "wait": "ms: mean wait of a decoded item for the engine",
    "forward": "ms: mean time in the engine of the micro-batch that a request was in",
    "encode": "ms: mean time to write an answer",
    "lag": "ms: how late the generator sent a request; part of the latency, and not the server's fault",
    "valid": "NO where the generator fell behind its schedule or nothing stood still; the reason is given below",
}
