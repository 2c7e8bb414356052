"""A node as one foreground process, for containers: TorchServe, and Envoy in front of it on one port.

    tini -> python -m deploy.container node -> TorchServe, on loopback   (deploy.run)
                                            -> Envoy, on port 8085       (deploy.gateway.envoy)

What edges and orchestrators ask (/ready, /live, /models) is answered by Envoy from a file that the process writes, so
that an answer never waits for TorchServe.
"""
