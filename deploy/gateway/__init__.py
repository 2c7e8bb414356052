"""The gateway: Envoy in front of the nodes, and what configures it.

    gateway.yaml -> settings ─────────────────────────┐
    nodes' management API -> nodes -> state (Fleet) ──┴> envoy: files -> Envoy <- clients
                                           └───────────> control: what is asked about models, not of them

Envoy carries every inference between client and node by itself. What is asked about models (metadata, readiness,
statistics, the page) goes to the control process, which also writes Envoy's files anew as models and nodes come and go.
Without the control process Envoy serves on as it was configured last.
"""
