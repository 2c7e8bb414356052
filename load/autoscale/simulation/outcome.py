"""What a simulated day came to.

counted request by request, replica by replica -> Outcome: shares, hours, a row for each minute
"""

from dataclasses import dataclass, field

MINUTE_S = 60.0


@dataclass(slots=True)
class Minute:
    """A minute of the day.

    Attributes:
        arrivals: requests.
        in_target: those of them that were answered in time.
        replicas: that take requests, at its begin.
        asked_for: that there should be, at its begin.
    """

    arrivals: int = 0
    in_target: int = 0
    replicas: int = 0
    asked_for: int = 0


@dataclass(slots=True)
class Outcome:
    """The sums of a day, and its minutes.

    Attributes:
        arrivals: requests.
        answered: those that were answered, in time or late.
        refused: those that were not.
        in_target: those that were answered in time.
        latency_s: summed over those that were answered.
        in_flight_s: integral of the requests in flight over time.
        replica_s: seconds of replicas, from creation to end: what is paid for.
        engine_s: the engines' busy seconds.
        lasted_s: until the last answer.
        minutes: from the begin of the day.
    """

    arrivals: int = 0
    answered: int = 0
    refused: int = 0
    in_target: int = 0
    latency_s: float = 0.0
    in_flight_s: float = 0.0
    replica_s: float = 0.0
    engine_s: float = 0.0
    lasted_s: float = 0.0
    minutes: list[Minute] = field(default_factory=list)

    @property
    def share_in_target(self) -> float:
        """The share of all requests that were answered in time; refused ones were not."""
        return self.in_target / self.arrivals if self.arrivals else 1.0

    @property
    def replica_hours(self) -> float:
        """Hours of replicas that are paid for."""
        return self.replica_s / 3600

    @property
    def mean_latency_s(self) -> float:
        """Of the requests that were answered."""
        return self.latency_s / self.answered if self.answered else 0.0

    def minute(self, time_s: float) -> Minute:
        """The minute of a time; those until then are there as well."""
        number = int(time_s / MINUTE_S)
        while len(self.minutes) <= number:
            self.minutes.append(Minute())
        return self.minutes[number]
