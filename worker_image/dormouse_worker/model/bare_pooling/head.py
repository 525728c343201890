"""From hidden states to what a text gets, without torch: a vector pooled, cut and normalized, or numbers of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

import numpy as np

from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.files import task_files
from dormouse_worker.files.head_files import Activation, HeadFiles
from dormouse_worker.files.task_files import Pooling
from dormouse_worker.model.bare_pooling.families import HeadNames
from dormouse_worker.model.bare_pooling.maps import KernelMaps
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


class Head(Protocol):
    """Makes of hidden states what a call is answered with."""

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """Return numbers for each packed text of rows [T, H], in order, in memory of their own."""


@dataclass(frozen=True, slots=True)
class VectorHead:
    """Implements `Head` for vectors."""

    pooling: Pooling

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """See `Head`: a vector for each, cut and normalized as it wants."""
        rows = np.split(hidden, _starts(texts)[1:])
        return [self._vector(part, text.params) for part, text in zip(rows, texts, strict=True)]

    def _vector(self, rows: Floats, params: PoolingParams) -> Floats:
        vector = np.concatenate([REDUCES[mode](rows) for mode in self.pooling.modes])
        cut = vector[: params.dimensions] if params.dimensions else vector
        if not (self.pooling.normalizes if params.normalize is None else params.normalize):
            return cut
        normalized: Floats = cut / max(np.sqrt(cut @ cut), np.float32(_SHORTEST))
        return normalized


class LabelHead:
    """Implements `Head` for classifiers: two layers over each text's first row."""

    def __init__(self, names: HeadNames, files: HeadFiles, maps: KernelMaps) -> None:
        self._names, self._files, self._maps = names, files, maps
        self._dense, self._labels = maps.linear(names.dense), maps.linear(names.labels)

    def __repr__(self) -> str:
        return f"LabelHead({len(self._files.labels)} labels, {self._names.activation}, {self._files.activation})"

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """See `Head`: [labels], as probabilities if it wants."""
        first = np.ascontiguousarray(hidden[_starts(texts)])
        dense = self._maps.product(first, self._dense, first.shape[1])
        between = np.tanh(dense) if self._names.activation == "tanh" else np.maximum(dense, 0)
        numbers = self._maps.product(between, self._labels, len(self._files.labels))
        return [
            activated(row, self._files.activation) if text.params.use_activation else row
            for row, text in zip(numbers, texts, strict=True)
        ]


def activated(numbers: Floats, activation: Activation) -> Floats:
    """Return probabilities of one text's numbers [labels]; the numbers themselves where there is none."""
    if activation == "none":
        return numbers
    if activation == "sigmoid":
        sigmoid: Floats = np.float32(1) / (np.float32(1) + np.exp(-numbers))
        return sigmoid
    weights = np.exp(numbers - numbers.max())
    softmax: Floats = weights / weights.sum()
    return softmax


def _starts(texts: Sequence[PooledSequence]) -> list[int]:
    """Return each text's first row."""
    return [0, *accumulate(text.num_tokens for text in texts[:-1])]
