"""A plain function of arrays as an engine: numpy, scikit-learn, or whatever else runs a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from handlers.engines import Arrays, Outputs
from handlers.errors import OutOfMemory


class FunctionEngine:
    """Runs a function once per micro-batch."""

    def __init__(self, function: Callable[..., Outputs], input_names: Sequence[str]) -> None:
        """Take a function over.

        Args:
            function: called with the micro-batch's arrays (B, ...) as keyword arguments; returns named arrays (B, ...).
            input_names: the names of its arguments.
        """
        self._function = function
        self.input_names = tuple(input_names)
        self.description = f"function {getattr(function, '__qualname__', type(function).__name__)}"

    def run(self, inputs: Arrays) -> Outputs:
        """See `Engine.run`. What the function gives is copied: it may use the same arrays for its next run."""
        try:
            outputs: Any = self._function(**inputs)
            if not isinstance(outputs, Mapping):
                return outputs  # type: ignore[no-any-return] # who calls holds it against what it expects
            return {
                name: np.array(array) if isinstance(array, np.ndarray) else array for name, array in outputs.items()
            }
        except MemoryError as error:
            raise OutOfMemory from error
        except SystemExit as error:
            # It would end the worker, and with it the requests of everybody else.
            raise RuntimeError("the function called exit") from error
