"""Arrays as tensors on a device, without waiting for anything that the device does. Needs torch when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device."""
    return on_host_for(array, device).to(device, non_blocking=True)


def on_host_for(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor in host memory, pinned if the device copies from it by itself.

    torch gives a pinned buffer to nobody else before the copies out of it have ended, so nobody waits here.
    """
    import torch

    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def tensor_beside(array: npt.NDArray[Any], other: torch.Tensor) -> torch.Tensor:
    """Return the array as a tensor on the other's device."""
    return to_device(array, other.device)


def row_index(rows: Sequence[int] | npt.NDArray[np.int64], other: torch.Tensor) -> torch.Tensor:
    """Return the numbers of rows as what indexes a tensor on the other's device: a list would be waited for."""
    return tensor_beside(np.asarray(rows, dtype=np.int64), other)
