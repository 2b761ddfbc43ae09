"""Units and the array types that the whole of benchkit shares.

Durations are integers of nanoseconds and carry ``_ns`` in their name; sizes are integers of bytes; ratios are candidate / baseline.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MIB = 1 << 20
