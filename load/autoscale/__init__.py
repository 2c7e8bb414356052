"""Rules for KEDA, made of what `load tune` measured, and a simulation that says what they do over a day.

Tuned, Wishes -> rules.derive -> Rules <-> scaled_object: the YAML that KEDA reads
                                   └─> simulation: a day of traffic -> replicas, requests in target, replica-hours
"""
