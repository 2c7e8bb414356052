"""Types that many modules name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of any datatype
DType = np.dtype[Any]
JsonObject = dict[str, Any]  # a parsed JSON object, whose values are checked as they are read
