"""A scheduler in simulated time without a frontend, on an engine whose times are a line through known points."""

from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from handlers.batching.engine import LatencyModel, Streams
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from tests.simulated.adaptive import AdaptiveWorker, Simulated
from tests.simulated.traffic import Arrival, Clients, Machine

FIXED_S, TOKEN_S = 0.002, 0.0001
# How many times longer a micro-batch takes on one of two streams.
NARROW = 1.8


def true_s(tokens: int) -> float:
    """Return the seconds of a micro-batch that has the engine to itself; the default of tests."""
    return FIXED_S + TOKEN_S * tokens


# Items of length 10 that the engine does in a second, in full micro-batches of 16.
CAPACITY_PER_S = 16 / true_s(160)


def model(times: float = 1.0) -> LatencyModel:
    """Return a model that knows the engine, or one that is so many times slower."""
    return LatencyModel([(10, times * true_s(10)), (1000, times * true_s(1000))])


def draw_arrivals(lengths: Sequence[int], **more: st.SearchStrategy[float]) -> st.SearchStrategy[list[Arrival]]:
    arrival = st.builds(
        Arrival,
        at_s=st.floats(0, 0.3),
        length=st.sampled_from(lengths),
        priority=st.sampled_from([None, 1, 2, 3]),
        items=st.integers(1, 5),
        decode_s=st.sampled_from([0.0, 0.001, 0.05]),
        **more,
    )
    return st.lists(arrival, max_size=40)


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    engine_s: Callable[[int], float] = true_s,
    streams: int = 1,
    *,
    believed: tuple[float, float] = (1.0, 1.0),
) -> Simulated:
    """Run until nothing is left to happen; `believed` has the factors by which times are overestimated at first."""
    wide, narrow = believed
    engine = Streams(model(wide), model(narrow * NARROW) if streams > 1 else None, streams)
    machine = Machine(engine_s, lambda tokens: NARROW * engine_s(tokens), streams)
    return AdaptiveWorker(Clients(arrivals), Scheduler(policy, engine), machine).run()


def percentile_s(simulated: Simulated, percent: float, priority: int | None = None) -> float:
    done = sorted(each.latency_s for each in simulated.of("done") if priority in (None, each.arrival.priority))
    return done[int(len(done) * percent / 100)]
