from typing import Any

import pytest

from handlers.config import HandlerConfig, parse
from handlers.scheduling.policy import settled


@pytest.mark.parametrize(
    ("said", "settings", "mode"),
    [
        (None, {}, "classic"),
        (None, {"continuousBatching": False}, "classic"),
        (None, {"continuousBatching": "true"}, "classic"),
        (None, {"continuousBatching": True}, "adaptive"),
        ("auto", {"continuousBatching": True}, "adaptive"),
        ("classic", {"continuousBatching": True}, "classic"),
        ("adaptive", {}, "adaptive"),
    ],
)
def test_mode_left_open_is_adaptive_where_torchserve_lets_the_worker_choose(
    said: str | None, settings: dict[str, Any], mode: str
) -> None:
    scheduling = {"max_queue_items": 7} if said is None else {"max_queue_items": 7, "mode": said}
    config = settled(parse(HandlerConfig, {"scheduling": scheduling, "max_items": 3}), settings)
    assert (config.scheduling.mode, config.scheduling.max_queue_items, config.max_items) == (mode, 7, 3)
