"""The best settings of a server for each number of clients.

a server with some settings -> measure_rates -> choose -> Tuned
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from load import LoadError
from load.bench.contender import Endpoint
from load.bench.rounds import PEER_CLIENTS, Bench, progress
from load.generate import Check, ClosedLoop

CHOICE_S = 1.0  # seconds of a measurement that chooses


class Tuning(NamedTuple):
    copies: int
    wait_ms: float

    def __str__(self) -> str:
        return f"copies: {self.copies}, wait for a batch: {self.wait_ms:g} ms"


def measure_rates(title: str, tuning: Tuning, endpoint: Endpoint, check: Check | None) -> dict[int, float]:
    """Check the responses of a tuning, and return its rate for each number of clients; 0 without a good response."""
    replace(endpoint, check=check).run(ClosedLoop(1), 0.5, 0.0)
    rates = dict.fromkeys(PEER_CLIENTS, 0.0)
    for clients in PEER_CLIENTS:
        with suppress(LoadError):
            rates[clients] = endpoint.run(ClosedLoop(clients), CHOICE_S, CHOICE_S).per_s
    words = ", ".join(f"{rate:.0f}/s with {clients}" for clients, rate in rates.items())
    progress(f"{title}, {tuning}: {words}")
    return rates


def choose(bench: Bench, title: str, rates: Mapping[Tuning, Mapping[int, float]]) -> dict[int, Tuning]:
    """Return the fastest tuning for each number of clients, and state it below the table."""
    chosen = {clients: max(rates, key=lambda each: rates[each][clients]) for clients in PEER_CLIENTS}
    for clients, tuning in chosen.items():
        bench.remark(f"{title}, {ClosedLoop(clients)}: {tuning}")
    return chosen
