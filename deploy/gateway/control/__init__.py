"""The control process: what is asked about models, and not of them.

    nodes ─> discovery ─> Fleet ─┬> Envoy's files
                                 ├> the Open Inference Protocol: metadata, readiness, configuration, statistics
                                 └> the page
    operators ─> /control: nodes, draining, canaries

It carries no inference: while it is away, Envoy serves on as it was configured last.
"""
