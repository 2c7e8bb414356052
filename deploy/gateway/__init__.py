"""The gateway: Envoy in front of the nodes, and what configures it.

    gateway.yaml -> settings ─────────────────────────┐
    nodes' management API -> nodes -> state (Fleet) ──┴> envoy: files -> Envoy <- clients
                                           └───────────> control: what is asked about models, not of them

Envoy carries every inference between client and node by itself. What is asked about models (metadata, readiness,
statistics, the page) goes to the control process, which also writes Envoy's files anew as models and nodes come and go.
Without the control process Envoy serves on as it was configured last.

    a setting, the range of a limit     settings.py
    a limit, a key, a rate, TLS         envoy/listeners.py, listener.yaml
    a route, a canary                   envoy/route.yaml (fixed ones), routes.py (those of models)
    health of nodes, their tokens       envoy/clusters.py, cluster.yaml
    an error that Envoy answers         envoy/local_reply.yaml
    what an inference passes in Lua     envoy/lua/
    an answer about models              control/protocol.py (routes), control/description.py (documents)
    an answer to operators              control/operator.py
    a metric of the gateway             metrics.py
    Triton's statistics, a chart        traffic.py, control/page.py, page/
"""
