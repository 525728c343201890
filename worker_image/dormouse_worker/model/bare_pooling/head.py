"""From hidden states to one vector a text, without torch: pooling, cutting, normalizing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.files import task_files
from dormouse_worker.files.task_files import Pooling
from dormouse_worker.model.scratch import Floats

_SHORTEST = 1e-12  # what a shorter vector is divided by, as in torch's normalize


def _weighted(rows: Floats) -> Floats:
    weights = np.arange(1, len(rows) + 1, dtype=np.float32)
    weighted: Floats = weights @ rows / weights.sum()
    return weighted


REDUCES: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(  # rows [n, H] of one text → [H]
    {
        task_files.MEAN: lambda rows: rows.mean(0),
        task_files.CLS: lambda rows: rows[0],
        task_files.LAST: lambda rows: rows[-1],
        task_files.MAX: lambda rows: rows.max(0),
        task_files.MEAN_SQRT: lambda rows: rows.sum(0) / np.float32(len(rows) ** 0.5),
        task_files.WEIGHTED: _weighted,
    }
)


def vectors_of(hidden: Floats, texts: Sequence[PooledSequence], pooling: Pooling) -> list[Floats]:
    """Return a vector for each packed text of rows [T, H], cut and normalized as it wants."""
    ends = np.cumsum([text.num_tokens for text in texts])
    rows = np.split(hidden, ends[:-1])
    return [_vector(part, text.params, pooling) for part, text in zip(rows, texts, strict=True)]


def _vector(rows: Floats, params: PoolingParams, pooling: Pooling) -> Floats:
    vector = np.concatenate([REDUCES[mode](rows) for mode in pooling.modes])
    cut = vector[: params.dimensions] if params.dimensions else vector
    if not (pooling.normalizes if params.normalize is None else params.normalize):
        return cut
    normalized: Floats = cut / max(np.sqrt(cut @ cut), np.float32(_SHORTEST))
    return normalized
