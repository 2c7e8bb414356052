"""Why a measurement cannot be made; each is one line that says what to do.

LoadError
├── InputError       what is to be sent, or expected, cannot be read
├── BadRange         a range of numbers makes no sense
├── NotServed        no server, no model, or it answers with an error
├── NotPossible      no setting does what is wanted
├── BadRun           a file holds no stored run
└── CannotWrite      a result cannot be kept
"""


class LoadError(Exception):
    """A measurement cannot be made."""


class InputError(LoadError):
    """What was to be sent, or is expected, cannot be read."""


class BadRange(LoadError):
    """A range of numbers makes no sense."""


class NotServed(LoadError):
    """The model does not answer."""


class NotPossible(LoadError):
    """No setting does what is wanted."""


class BadRun(LoadError):
    """A file holds no run of this program."""


class CannotWrite(LoadError):
    """A result cannot be kept."""
