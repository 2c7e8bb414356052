"""A day of traffic on replicas that come and go, in simulated time: events in a queue, no clock, no server.

    traffic.arrivals ─> cluster: the replica with the fewest requests ─> replica: queue, batch, answer
                           │  every 15 s
                           ├─> prometheus: samples ─> the triggers' metrics
                           └─> hpa: metrics ─> wanted replicas ─> started, drained
                        -> outcome: requests in target, replica-hours, by the minute

How long a batch takes is what `load tune` measured. The rules are those of a ScaledObject, read from its YAML.
"""
