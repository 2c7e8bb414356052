"""When an adaptive worker answers TorchServe's frontend. Pure: times and counts in, a time out.

In continuous-batching mode an answer may hold any of the requests in flight, none even. The frontend then sends at once
everything that is still in flight, payloads included, and what has arrived meanwhile: an exchange. Answers leave and
arrivals come in by exchanges only, so they must be timely; each costs time in proportion to what is in flight, so they
must be few. One happens when

    everything in flight is answered           the frontend then waits for the next request, and an idle worker is idle
    some answers are complete                  at once where the engine has nothing else to do, else gap_costs apart
    an answer in pieces has its first one      gap_costs apart
    others have more of theirs                 piece_s apart, so that pieces of all are sent together
    a refusal has waited for refusal_s         or for longest_refusal_s where they are many, so that they cost little of
                                               a core: not before that, whatever else is ready. No longer where they
                                               fill the window, so that nobody waits unseen
    a stream will soon be free                 early enough for new arrivals to be decoded before it is: a fetch
    a stream is free while others run          halfway to the end of their micro-batch, and halfway again: a fetch each
    all are, and something is decoded long     every idle_fetch_s, so that nobody waits for a slow picture: a fetch
    there is anything to do                    every watch_s, for who comes now may be more urgent than all of it, and
                                               must hear soon where there is no room: a watch

A fetch that brings nobody was for nothing. Their share is tracked, and while most are for nothing, one in fetch_probe
is made: a single client that waits for its answer is not asked all the time whether it is there.
"""

from dataclasses import dataclass, field
from math import inf

from handlers.scheduling.running_mean import RunningMean


@dataclass(frozen=True, slots=True)
class Tuning:
    """What the rhythm is tuned by; chosen on two cores with one to 64 clients.

    Attributes:
        gap_costs: exchanges keep this many times their own cost between them, so that they take at most half of a
            thread;
        gap_share: but no more than this share of the work that is enough, for an answer that is complete must not wait
            long.
        refusal_s: seconds that a refusal waits for company;
        refusal_cost_s: seconds of a core that one costs with the connection and the body of who comes again at once:
            the client's, TorchServe's, the worker's;
        refusal_share: share of a core that all of them may cost: a refused client that would come again at once is
            slowed down, and takes little from those served;
        longest_refusal_s: but no refusal waits for longer, for its client may ask another server.
        idle_fetch_s: seconds between two fetches of an idle engine whose next items are being decoded.
        watch_s: seconds between two exchanges at most, while there is anything to do and room in the window;
        watch_costs: but at least so many times what an exchange costs, for it sends again all that is in flight.
        piece_s: seconds between two exchanges for pieces of answers: who reads them cannot tell it from none, and an
            engine that is quicker has several tokens in a piece;
        piece_costs: but at least so many times what an exchange costs, so that pieces take at most a fifth of a thread.
        quick_s: seconds of work that are over before a fetch and the decoding of what it brings would be;
        quick_items: so many of these are run together, for an exchange costs more than they do one by one.
        lone_s: a lone request that takes longer is left to the engine's threads, so that somebody looks out for others.
        crowded_share: with more than this share of the window in flight, refusals wait for refusal_s alone.
        fetch_probe: while most fetches bring nobody, one is made in so many micro-batches.
        most_fetches: fetches for one micro-batch while a stream is free.
        least_use: share of fetches that must bring somebody for all of them to be made.
        latest_weight: share of the latest observation in each running mean.
        first_cost_s: seconds that an exchange, and decoding, are taken to cost before any was seen.
    """

    gap_costs: float = 1.0
    gap_share: float = 0.33
    refusal_s: float = 0.05
    refusal_cost_s: float = 0.001
    refusal_share: float = 0.1
    longest_refusal_s: float = 0.07
    idle_fetch_s: float = 0.005
    watch_s: float = 0.03
    watch_costs: float = 4.0
    piece_s: float = 0.02
    piece_costs: float = 4.0
    quick_s: float = 0.003
    quick_items: int = 16
    lone_s: float = 0.05
    crowded_share: float = 0.9
    fetch_probe: int = 8
    most_fetches: int = 2
    least_use: float = 0.3
    latest_weight: float = 0.2
    first_cost_s: float = 0.001


TUNING = Tuning()


def _mean(value: float) -> RunningMean:
    return RunningMean(value, TUNING.latest_weight)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the worker knows when it asks whether to answer.

    Attributes:
        in_flight: how many requests the frontend waits for.
        complete: how many of them could be answered now.
        refused: how many of these were not admitted.
        oldest_refusal_s: when the first of these came; infinity where there is none.
        stream_ends_s: when the first of the running micro-batches should end; infinity while the engine is idle.
        is_stream_free: whether another micro-batch could start now.
        queued_s: seconds that the engine has to do with what is decoded.
        decoding: how many requests are being decoded.
        streamed: how many of the requests in flight are answered in pieces.
        pieces: how many of these have something to send.
        first_pieces: how many of these have sent nothing yet.
    """

    in_flight: int
    complete: int
    refused: int = 0
    oldest_refusal_s: float = inf
    stream_ends_s: float = inf
    is_stream_free: bool = True
    queued_s: float = 0.0
    decoding: int = 0
    streamed: int = 0
    pieces: int = 0
    first_pieces: int = 0

    @property
    def is_all_complete(self) -> bool:
        """Whether everything in flight can be answered."""
        return self.complete == self.in_flight

    @property
    def is_engine_done(self) -> bool:
        """Whether it is idle and will be until somebody arrives or is decoded."""
        return self.stream_ends_s == inf and self.queued_s == 0


@dataclass(slots=True)
class ResponseTiming:
    """The rhythm of one worker.

    Attributes:
        window: most requests in flight: the registration's batch_size.
        enough_s: seconds of queued work beyond which nobody needs to be fetched.
        cost_s: seconds that an exchange takes, from an answer to the next rows.
        decode_s: seconds from rows to decoded items.
        use: share of fetches that brought somebody.
    """

    window: int
    enough_s: float
    cost_s: RunningMean = field(default_factory=lambda: _mean(TUNING.first_cost_s))
    decode_s: RunningMean = field(default_factory=lambda: _mean(TUNING.first_cost_s))
    use: RunningMean = field(default_factory=lambda: _mean(1.0))
    _came_s: float = -inf
    _went_s: float | None = None
    _is_fetch: bool = False
    _is_watch: bool = False
    _batches_since_fetch: int = 0
    _fetches_since_batch: int = 0

    def came(self, now_s: float, newcomers: int) -> None:
        """Note that rows came in, with so many requests that were not known."""
        if self._went_s is not None:
            self.cost_s.observe(now_s - self._went_s)
        if self._is_fetch or (self._is_watch and newcomers):
            self.use.observe(newcomers > 0)
        self._came_s = now_s
        # Where this exchange fails, what lies between it and the next is no cost.
        self._went_s, self._is_fetch, self._is_watch = None, False, False

    def decoded(self, seconds: float) -> None:
        """Note that what came in was decoded, so many seconds after it came."""
        self.decode_s.observe(seconds)

    def goes(self, now_s: float, situation: Situation) -> None:
        """Note that an answer leaves; with nothing left in flight its cost cannot be told from waiting for a client."""
        is_anything_left = not situation.is_all_complete
        self._went_s = now_s if is_anything_left else None
        # Refusals alone are no reason to go before they are due.
        is_for_newcomers = is_anything_left and situation.complete == situation.refused and not situation.pieces
        self._is_fetch = is_for_newcomers and self._planned_s(situation) <= now_s
        self._is_watch = is_for_newcomers and not self._is_fetch
        if self._is_fetch:
            self._batches_since_fetch = 0
            self._fetches_since_batch += 1

    def micro_batch_ended(self) -> None:
        """Note that one more micro-batch has ended: those without a fetch are counted."""
        self._batches_since_fetch += 1
        self._fetches_since_batch = 0

    def most_here(self, situation: Situation) -> int:
        """Tell how many items the frontend's thread should run itself, in one micro-batch; 0 where it should not.

        It does where that is done sooner than a fetch, or where a single client waits, for its answer as a whole, and
        fetches lately brought nobody: no other thread needs to be woken, and nobody is kept waiting for it. Of many it
        takes half: while it runs the others, TorchServe and the clients of these are at work.
        """
        if situation.is_all_complete or situation.streamed or situation.stream_ends_s < inf:
            return 0
        if situation.queued_s <= TUNING.quick_s:
            return max(TUNING.quick_items, (situation.in_flight + 1) // 2)
        is_lone = situation.in_flight == 1 and situation.queued_s <= TUNING.lone_s and not self._is_fetch_useful
        return self.window if is_lone else 0

    def due_s(self, situation: Situation) -> float:
        """Tell when to answer: a time that has passed means now; infinity until something happens."""
        if situation.is_all_complete:
            return -inf
        return min(self._planned_s(situation), self._watch_due_s(situation))

    def refusal_due_s(self, situation: Situation) -> float:
        """Tell when the refusals in flight may go, all of them; infinity without any, any time with everything else."""
        if situation.is_all_complete:
            return -inf
        is_crowded = situation.in_flight > TUNING.crowded_share * self.window
        paced_s = situation.refused * TUNING.refusal_cost_s / TUNING.refusal_share
        hold_s = TUNING.refusal_s if is_crowded else max(TUNING.refusal_s, min(TUNING.longest_refusal_s, paced_s))
        return situation.oldest_refusal_s + hold_s

    def _watch_due_s(self, situation: Situation) -> float:
        if situation.in_flight >= self.window:
            return inf
        return self._came_s + max(TUNING.watch_s, TUNING.watch_costs * self.cost_s.value)

    def _planned_s(self, situation: Situation) -> float:
        due_s = self.refusal_due_s(situation)
        earliest_s = self._came_s + min(TUNING.gap_costs * self.cost_s.value, TUNING.gap_share * self.enough_s)
        if situation.complete > situation.refused:
            due_s = min(due_s, -inf if situation.is_engine_done else earliest_s)
        if situation.first_pieces:
            due_s = min(due_s, earliest_s)
        if situation.pieces:
            due_s = min(due_s, self._came_s + max(TUNING.piece_s, TUNING.piece_costs * self.cost_s.value))
        if situation.stream_ends_s < inf and self._is_fetch_worthwhile(situation):
            needed_s = situation.stream_ends_s - self.cost_s.value - self.decode_s.value
            if situation.is_stream_free:
                needed_s = (self._came_s + situation.stream_ends_s) / 2
            due_s = min(due_s, max(earliest_s, needed_s))
        if situation.is_engine_done and situation.decoding and situation.in_flight < self.window:
            due_s = min(due_s, max(earliest_s, self._came_s + TUNING.idle_fetch_s))
        return due_s

    def _is_fetch_worthwhile(self, situation: Situation) -> bool:
        if situation.in_flight >= self.window or situation.queued_s >= self.enough_s:
            return False
        # None while those of the last are still being decoded.
        if self._fetches_since_batch >= (TUNING.most_fetches if situation.is_stream_free else 1) or situation.decoding:
            return False
        return self._is_fetch_useful

    @property
    def _is_fetch_useful(self) -> bool:
        """Whether fetches bring somebody, or it is time to find out."""
        return self.use.value >= TUNING.least_use or self._batches_since_fetch >= TUNING.fetch_probe
