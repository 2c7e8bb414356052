"""A node as one foreground process, for containers: TorchServe, and Envoy in front of it on one port.

    tini -> python -m deploy.nodes.container -> TorchServe, on loopback   (deploy.nodes.run)
                                       -> Envoy, on port 8085       (deploy.gateway.envoy)

Envoy answers the requests of edges and orchestrators (/ready, /live, /models) from a file that the process writes, so
that these responses never wait for TorchServe.
"""
