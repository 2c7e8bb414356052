"""Runs TorchServe on this machine: one server, or several nodes that share it.

config.properties -> Layout -> LocalNode: a Server with its folder, ports and share   (machine, server)
LocalNode -> start_node -> restore -> stop_node                                       (lifecycle, restore)
`make serve`: development or production                                               (serve)
"""


class ServerError(Exception):
    """A server did not start, stop or answer as requested; the message is one line with the reason."""
