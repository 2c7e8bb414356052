"""The gateway: Envoy in front of the nodes, and the process that configures it.

    gateway.yaml -> settings ─────────────────────────┐
    nodes' management API -> watch -> state (Fleet) ──┴> envoy: files -> Envoy <- clients
                                           └───────────> control: questions about models

Envoy carries every inference between client and node. Questions about models (metadata, readiness, statistics, the
page) go to the control process, which also rewrites Envoy's files as models and nodes come and go. Without the control
process Envoy serves with its last configuration.

    a setting, the range of a limit     settings.py
    a limit, a key, a rate, TLS         envoy/listeners.py, listener.yaml
    a route, a canary                   envoy/route.yaml (fixed routes), routes.py (routes of models)
    health of nodes, their tokens       envoy/clusters.py, cluster.yaml
    an error that Envoy returns         deploy/protocol/rejections.py
    Lua filters of an inference         envoy/lua/
    a response about models             control/protocol.py (routes), deploy/protocol (documents)
    a response to operators             control/operator.py
    a metric of the gateway             metrics.py
    Triton's statistics, a chart        traffic.py, control/page.py, page/
"""
