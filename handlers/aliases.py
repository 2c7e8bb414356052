"""Types that many modules name."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # of any datatype
JsonObject = dict[str, Any]  # a parsed JSON object, whose values are checked as they are read
