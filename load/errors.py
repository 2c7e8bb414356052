"""The reasons why a measurement cannot be made; each error's message is one line that says what to do.

LoadError
├── InputError       the inputs, or the expected answers, cannot be read
├── BadRange         a range of numbers makes no sense
├── NotServed        there is no server, no model, or it answers with an error
├── NotPossible      no setting does what is wanted
├── TooMuch          more requests than memory is allowed for
├── BadRun           a file holds no stored run
└── CannotWrite      a result cannot be kept
"""


class LoadError(Exception):
    """A measurement cannot be made."""


class InputError(LoadError):
    """The inputs, or the expected answers, cannot be read."""


class BadRange(LoadError):
    """A range of numbers makes no sense."""


class NotServed(LoadError):
    """No server answers, it has no such model, or the model answers with an error."""


class NotPossible(LoadError):
    """No setting does what is wanted."""


class TooMuch(LoadError):
    """Recording so many requests would take more memory than is allowed."""


class BadRun(LoadError):
    """A file holds no run of this program."""


class CannotWrite(LoadError):
    """A result cannot be kept."""
