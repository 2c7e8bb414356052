"""Answers orders in a loop without a server: the other end of `peers.Child`.

{"engine": ...} once it has loaded; then, for each line of JSON on stdin, a measurement as a line of JSON on stdout
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def answer_orders(engine: str, measure: Callable[..., Mapping[str, Any]]) -> None:
    """Answer every line of stdin, until it ends.

    Args:
        engine: what the loop's engine calls itself.
        measure: makes one measurement; an order holds its arguments by name.
    """
    print(json.dumps({"engine": engine}), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), flush=True)
