"""Runs TorchServe on this machine: one server, or several that share it.

    config.properties -> Layout -> LocalNode: a Server with its folder, ports and share   (machine, server)
    LocalNode -> start_node -> restore -> stop_node                                         (nodes, restore)
    `make serve`: development or production                                                 (serve)

A node is a TorchServe with its share of the cores, or one GPU of its own. `make serve NODES=4` starts four on this
machine; deploy/gateway.yaml names those on others. The gateway stands in front of them all, and knows a node by its
name and addresses (node).
"""
