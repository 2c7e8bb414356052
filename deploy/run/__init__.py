"""Runs TorchServe on this machine: one server, or several nodes that share it.

    config.properties -> Layout -> LocalNode: a Server with its folder, ports and share   (machine, server)
    LocalNode -> start_node -> restore -> stop_node                                       (lifecycle, restore)
    `make serve`: development or production                                               (serve)

A node is a TorchServe with its share of the cores, or one GPU. `make serve NODES=4` starts four on this machine;
deploy/gateway.yaml names nodes on other machines. The gateway is in front of all nodes, and knows each by its name and
addresses (node).
"""
