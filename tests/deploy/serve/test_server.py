"""The timers of a connection and the samples of a counter, without a process."""

from unittest.mock import Mock

import uvicorn
from uvicorn.server import ServerState

from deploy.serve.connection import Protocol
from deploy.serve.limits import Limits
from deploy.serve.server import Series
from tests.tables import table

# No two of them are equal: each is of one step.
LIMITS = Limits(head_s=1.0, body_s=2.0, keep_alive_s=3)
HEAD, REST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n", b"\r\n"


@table(
    (b"", [LIMITS.head_s]),
    (b"\r\n", [LIMITS.head_s]),
    (HEAD, [LIMITS.head_s]),
    # The application bounds the time of a body.
    (HEAD + REST, []),
    (HEAD + REST + b"12345", []),
)
def test_connection_waits_for_a_head_until_that_is_complete(sent: bytes, expected: list[float]) -> None:
    loop, transport, timers = Mock(), Mock(), list[tuple[float, Mock]]()
    loop.call_later.side_effect = lambda seconds, _: timers.append((seconds, Mock())) or timers[-1][1]  # type: ignore[func-returns-value]
    loop.create_task.side_effect = lambda coroutine, **_: coroutine.close() or Mock()
    transport.get_extra_info.return_value = None
    protocol = Protocol(uvicorn.Config(Mock(), lifespan="off"), ServerState(), {}, _loop=loop)
    protocol.limits = LIMITS
    protocol.connection_made(transport)
    for byte in sent:
        protocol.data_received(bytes([byte]))
    assert [seconds for seconds, timer in timers if not timer.cancel.called] == expected
    protocol.connection_lost(None)
    assert all(timer.cancel.called for _, timer in timers)


def test_counter_adds_up_by_labels() -> None:
    series = Series(("outcome",), {})
    for value, label in ((1.0, "success"), (2.0, "fail"), (3.0, "success")):
        series.add_or_update(value, [label])
    assert series.samples == {("success",): 4.0, ("fail",): 2.0}
