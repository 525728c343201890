"""Rows and cells of an [N, V] tensor, picked without a copy where none is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dormouse_worker.model.sampling.sampling_row import TokenIds
from dormouse_worker.model.to_device import row_index

if TYPE_CHECKING:
    import torch


def take_rows(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return the rows of these ascending, distinct numbers; the tensor itself if they are all of them."""
    return tensor if len(rows) == tensor.shape[0] else tensor[row_index(rows, tensor)]


def flat_cells(ids_of_rows: Iterable[tuple[int, TokenIds]], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return row * V + id for every token id of every row: where it stands in a flattened [N, V] tensor.

    Ids outside the vocabulary are left out: nobody can sample them, and their place would be a cell of another row.
    """
    cells = [np.empty(0, dtype=np.int64)]
    for row, ids in ids_of_rows:
        known = np.asarray(ids, dtype=np.int64)
        cells.append(row * vocab_size + known[(known >= 0) & (known < vocab_size)])
    return np.concatenate(cells)
