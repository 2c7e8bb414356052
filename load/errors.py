"""The one error of the load generator."""


class LoadError(Exception):
    """A measurement cannot be made, or a result not kept; the message is one line that says what to do."""
