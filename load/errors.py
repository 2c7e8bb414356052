"""The one error of the load generator."""


class LoadError(Exception):
    """A measurement cannot be made, or a result not stored; the message is one line with the remedy."""
