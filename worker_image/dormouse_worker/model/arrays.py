"""Arrays of whole numbers on the host: what batches, backends and samplers hand each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
