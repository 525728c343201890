"""Rows and cells of an [N, V] tensor, picked without a copy where none is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dormouse_worker.model.sampling.sampling_row import TokenIds

if TYPE_CHECKING:
    import torch


def take_rows(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the rows of these ascending, distinct numbers; the tensor itself if they are all of them."""
    return tensor if len(rows) == tensor.shape[0] else tensor[row_index(rows, tensor)]


def row_index(rows: Sequence[int] | npt.NDArray[np.int64], other: torch.Tensor) -> torch.Tensor:
    """Return the numbers of rows as what indexes a tensor on the other's device: a list would be waited for."""
    return tensor_beside(np.asarray(rows, dtype=np.int64), other)


def flat_cells(ids_of_rows: Iterable[tuple[int, TokenIds]], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return row * V + id for every token id of every row: where it stands in a flattened [N, V] tensor.

    Ids outside the vocabulary are left out: nobody can sample them, and their place would be a cell of another row.
    """
    cells = [np.empty(0, dtype=np.int64)]
    for row, ids in ids_of_rows:
        known = np.asarray(ids, dtype=np.int64)
        cells.append(row * vocab_size + known[(known >= 0) & (known < vocab_size)])
    return np.concatenate(cells)


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on the device, without waiting for anything that the device does."""
    return on_host_for(array, device).to(device, non_blocking=True)


def on_host_for(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor in host memory, pinned if the device copies from it by itself.

    torch gives a pinned buffer to nobody else before the copies out of it have ended, so nobody waits here.
    """
    import torch

    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def tensor_beside(array: npt.NDArray[Any], other: torch.Tensor) -> torch.Tensor:
    """Return the array as a tensor on the other's device; see `to_device`."""
    return to_device(array, other.device)
