"""The one error of the load generator."""


class LoadError(Exception):
    """A measurement is not possible, or a result cannot be stored; the message is one line with the remedy."""
