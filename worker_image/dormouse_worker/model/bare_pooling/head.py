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
from dormouse_worker.model.bare_pooling.dense import DenseLayer, activate
from dormouse_worker.model.bare_pooling.heads import HeadNames
from dormouse_worker.model.bare_pooling.maps import KernelMaps, KernelNorms
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

    @property
    def size(self) -> int:
        """Return the numbers for each text."""

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """Return numbers for each packed text of rows [T, H], in order, in memory of their own."""


@dataclass(frozen=True, slots=True)
class VectorHead:
    """Implements `Head` for vectors: pooled, through the layers behind, cut and normalized."""

    pooling: Pooling
    hidden_size: int
    layers: Sequence[DenseLayer]

    @property
    def size(self) -> int:
        """See `Head`."""
        return self.layers[-1].size if self.layers else self.hidden_size * len(self.pooling.modes)

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """See `Head`: a vector for each, cut and normalized as it wants."""
        parts = np.split(hidden, _starts(texts)[1:])
        rows = np.stack([np.concatenate([REDUCES[mode](part) for mode in self.pooling.modes]) for part in parts])
        for layer in self.layers:
            rows = layer(rows)
        return [self._finished(row, text.params) for row, text in zip(rows, texts, strict=True)]

    def _finished(self, vector: Floats, params: PoolingParams) -> Floats:
        cut = vector[: params.dimensions] if params.dimensions else vector
        if not (self.pooling.normalizes if params.normalize is None else params.normalize):
            return cut
        normalized: Floats = cut / max(np.sqrt(cut @ cut), np.float32(_SHORTEST))
        return normalized


class LabelHead:
    """Implements `Head` for classifiers: layers over what they read of each text."""

    def __init__(
        self, names: HeadNames, padding: int | None, files: HeadFiles, maps: KernelMaps, norms: KernelNorms
    ) -> None:
        """`padding` is a token that does not count where a text's last row is read."""
        self._names, self._padding, self._files, self._maps, self._norms = names, padding, files, maps, norms
        self._dense = None if names.dense is None else maps.linear(names.dense)
        self._norm = None if names.norm is None else norms.norm(names.norm, has_bias=False)
        self._labels = maps.linear(names.labels)
        self.size = len(files.labels)

    def __repr__(self) -> str:
        return f"LabelHead({self.size} labels, {self._names.reads}, {self._files.activation})"

    def outputs(self, hidden: Floats, texts: Sequence[PooledSequence]) -> list[Floats]:
        """See `Head`: [labels], as probabilities if it wants."""
        rows = self._between(self._read(hidden, texts))
        numbers = self._maps.product(rows, self._labels, self.size)
        return [
            activated(row, self._files.activation) if text.params.use_activation else row
            for row, text in zip(numbers, texts, strict=True)
        ]

    def _read(self, hidden: Floats, texts: Sequence[PooledSequence]) -> Floats:
        """Return what counts of each text, [texts, hidden]."""
        starts = _starts(texts)
        if self._names.reads == "mean":
            return np.stack([rows.mean(0) for rows in np.split(hidden, starts[1:])])
        if self._names.reads == "last":
            starts = [start + self._last(text) for start, text in zip(starts, texts, strict=True)]
        return np.ascontiguousarray(hidden[starts])

    def _last(self, text: PooledSequence) -> int:
        """Return the place of the last token that is no padding; 0 where all are, as transformers does."""
        places = range(text.num_tokens - 1, 0, -1)
        return next((place for place in places if text.token_ids[place] != self._padding), 0)

    def _between(self, rows: Floats) -> Floats:
        """Return what the labels' layer takes."""
        if self._dense is None:
            return rows
        dense = self._maps.product(rows, self._dense, rows.shape[1])
        activated_rows = activate(self._names.activation, dense, self._maps.kernels)
        if self._norm is not None:
            self._norms.apply(self._norm, activated_rows, None, activated_rows)
        return activated_rows


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
