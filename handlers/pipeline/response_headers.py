"""The headers of a response: what the request took, and what its client may do next. Pure."""

from collections.abc import Sequence
from math import ceil

from handlers.pipeline.jobs import AnySlot, Job, Slot
from handlers.protocol.metadata import Metadata
from handlers.protocol.responses import GRPC_HEADERS
from handlers.protocol.wire import CACHE_HEADER, SPACE_HEADER, TOKENS_HEADER

VERSION_HEADER = "X-Model-Version"  # header with the model's version, for clients and routers of several versions
# Header with the milliseconds after which a rejected client may retry: Retry-After, but finer.
RETRY_AFTER_MS = "Retry-After-Ms"
# Header of an answer to X-Model-Metadata: a rollout waits for 0 before it removes an adaptive version.
IN_FLIGHT = "X-In-Flight"


def headers_of(
    job: Job[AnySlot], model: Metadata, others: int | None, started_s: float, ended_s: float
) -> dict[str, str]:
    """Return the headers of a response that is written from `started_s` on; `others` are None in classic mode."""
    headers = {} if model.version is None else {VERSION_HEADER: model.version}
    if model.vector_space is not None:
        headers[SPACE_HEADER.title()] = model.vector_space
    timing = server_timing(job.slots, ended_s - started_s)
    headers["Server-Timing"] = (
        timing if others is None else f"total;dur={1000 * (ended_s - job.arrived_s):.2f}, {timing}"
    )
    if tokens := sum(slot.cost.sent for slot in job.slots if slot.error is None):
        headers[TOKENS_HEADER] = str(tokens)
    if job.is_grpc:
        headers |= GRPC_HEADERS
    if others is not None and isinstance(job.form, Metadata):
        headers[IN_FLIGHT] = str(others)
    if job.slots and all(slot.is_cached for slot in job.slots):
        headers[CACHE_HEADER] = "hit"
    if job.retry_after_s is not None:
        # Retry-After has whole seconds; a client that reads the other header waits no longer than needed.
        after_ms = max(1, ceil(1000 * job.retry_after_s))
        headers |= {"Retry-After": str(ceil(after_ms / 1000)), RETRY_AFTER_MS: str(after_ms)}
    return headers


def server_timing(slots: Sequence[Slot], encode_s: float) -> str:
    """Write the Server-Timing header (W3C) with the durations of the request's slowest item, in milliseconds."""
    decode_s, wait_s, forward_s, batch_size = 0.0, 0.0, 0.0, 0
    for slot in slots:
        decode_s, wait_s = max(decode_s, slot.decode_s), max(wait_s, slot.wait_s)
        forward_s, batch_size = max(forward_s, slot.forward_s), max(batch_size, slot.batch_size)
    return (
        f"decode;dur={1000 * decode_s:.2f}, wait;dur={1000 * wait_s:.2f}, forward;dur={1000 * forward_s:.2f}, "
        f'encode;dur={1000 * encode_s:.2f}, batch;desc="{batch_size}"'
    )
