"""Nodes: one or several TorchServes, on this machine or on others.

A node is a TorchServe with its share of the cores, or one GPU of its own. `make serve NODES=4` starts four on this
machine; deploy/gateway.yaml names those on others. The gateway stands in front of them all.
"""
