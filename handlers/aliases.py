"""Types that many modules name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of any datatype
DType = np.dtype[Any]
Json = dict[str, Any]  # an object of JSON or YAML, whose values are checked as they are read
