"""From hidden states to one vector a sequence: pooling, layers behind it, cutting, normalizing. Computed in float32."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.files import task_files
from dormouse_worker.files.task_files import Dense, Pooling

Reduce = Callable[[torch.Tensor], torch.Tensor]  # rows [n, H] of one sequence → [H]


def _weighted(rows: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
    return (rows * weights[:, None]).sum(0) / weights.sum()


REDUCES: Mapping[str, Reduce] = MappingProxyType(
    {
        task_files.MEAN: lambda rows: rows.mean(0),
        task_files.CLS: lambda rows: rows[0],
        task_files.LAST: lambda rows: rows[-1],
        task_files.MAX: lambda rows: rows.amax(0),
        task_files.MEAN_SQRT: lambda rows: rows.sum(0) / len(rows) ** 0.5,
        task_files.WEIGHTED: _weighted,
    }
)


class PoolingHead:
    """Owns the layers behind the pooling, which are small and stay in host memory asleep."""

    def __init__(self, pooling: Pooling, hidden_size: int) -> None:
        """Read the layers' files. Raises ModelInvalid."""
        self._pooling = pooling
        self._layers = [_DenseLayer(dense) for dense in pooling.dense]
        self.size = hidden_size * len(pooling.modes)
        for layer in self._layers:
            self.size = layer.check(self.size)

    def __repr__(self) -> str:
        return f"PoolingHead({'+'.join(self._pooling.modes)}, {len(self._layers)} layers, {self.size})"

    def outputs(self, hidden: torch.Tensor, sequences: Sequence[PooledSequence]) -> list[torch.Tensor]:
        """See `runner.Head`: a vector for each text, cut and normalized as it wants."""
        rows = self.vectors(hidden, [sequence.num_tokens for sequence in sequences])
        return [self._finish(row, sequence.params) for row, sequence in zip(rows, sequences, strict=True)]

    def vectors(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Return [n, size] in host memory, of rows [T, H] of n packed sequences; neither cut nor normalized."""
        rows = torch.split(hidden.float(), list(lengths))
        reduces = [REDUCES[mode] for mode in self._pooling.modes]
        pooled = torch.stack([torch.cat([reduce(part) for reduce in reduces]) for part in rows]).cpu()
        for layer in self._layers:
            pooled = layer(pooled)
        return pooled

    def _finish(self, row: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        normalizes = self._pooling.normalizes if params.normalize is None else params.normalize
        return finished(row, dimensions=params.dimensions, normalizes=normalizes)


class _DenseLayer:
    def __init__(self, dense: Dense) -> None:
        file = dense.folder / "model.safetensors"
        try:
            tensors = load_file(file)
            self._weight = tensors["linear.weight"].float()
        except Exception as error:  # missing, broken or another layer's
            raise ModelInvalid(f"{file}: not readable as a dense layer ({error}); copy the model again") from error
        self._bias = tensors["linear.bias"].float() if "linear.bias" in tensors else None
        self._activation = _activation(dense)
        self._file = file

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        activated: torch.Tensor = self._activation(torch.nn.functional.linear(vectors, self._weight, self._bias))
        return activated

    def check(self, size: int) -> int:
        """Return the size of what comes out. Raises ModelInvalid where the layer takes another one."""
        if self._weight.dim() != 2 or self._weight.shape[1] != size:
            raise ModelInvalid(f"{self._file}: linear.weight is {list(self._weight.shape)}; it has to take {size}")
        return int(self._weight.shape[0])


def _activation(dense: Dense) -> Any:
    """Return torch's module of this name: nothing else is ever imported for a name in a file."""
    module, _, name = dense.activation.rpartition(".")
    found = getattr(importlib.import_module("torch.nn"), name, None) if module.startswith("torch.nn.modules") else None
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise ModelInvalid(f"{dense.folder}: activation {dense.activation!r} is none of torch.nn's")
    return found()


def finished(vector: torch.Tensor, *, dimensions: int, normalizes: bool) -> torch.Tensor:
    """Return a vector cut to so many dimensions, 0 = all, and then of length 1 if wanted."""
    cut = vector[:dimensions] if dimensions else vector
    return normalize(cut, dim=0) if normalizes else cut
