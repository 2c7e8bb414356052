"""The failure of a server."""


class ServerError(Exception):
    """A server did not start, stop or answer as requested; the message is one line with the reason."""
