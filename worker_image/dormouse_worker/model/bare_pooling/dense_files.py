"""The layers that sentence-transformers puts behind the pooling, as their files have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor, read_safetensors
from dormouse_worker.files.task_files import Dense
from dormouse_worker.model.lean.unfit import Unfit

Activation = Literal["gelu", "none", "relu", "sigmoid", "tanh"]
TYPES = MappingProxyType({"F32": "float32", "BF16": "bfloat16"})  # that are read here
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "torch.nn.modules.activation.GELU": "gelu",
        "torch.nn.modules.activation.ReLU": "relu",
        "torch.nn.modules.activation.Sigmoid": "sigmoid",
        "torch.nn.modules.activation.Tanh": "tanh",
        "torch.nn.modules.linear.Identity": "none",
    }
)
_WEIGHT, _BIAS = "linear.weight", "linear.bias"


@dataclass(frozen=True, slots=True)
class DenseFiles:
    """A layer's tensors, [out, in] and [out]."""

    weight: StoredTensor
    bias: StoredTensor | None
    activation: Activation

    @property
    def size(self) -> int:
        """Return the numbers that come out."""
        return self.weight.shape[0]


def read_layers(layers: Sequence[Dense], size: int) -> tuple[DenseFiles, ...] | Unfit:
    """Return the layers behind vectors of that size, or why torch has to read one, or to say what is wrong."""
    found: list[DenseFiles] = []
    for dense in layers:
        layer = _read(dense, found[-1].size if found else size)
        if isinstance(layer, Unfit):
            return layer
        found.append(layer)
    return tuple(found)


def _read(dense: Dense, size: int) -> DenseFiles | Unfit:
    activation = _ACTIVATIONS.get(dense.activation)
    if activation is None:
        return Unfit(f"the activation of a layer behind its pooling is {dense.activation}")
    try:
        tensors = read_safetensors(dense.folder / "model.safetensors").tensors
    except ModelInvalid as error:
        return Unfit(str(error))
    weight, bias = tensors.get(_WEIGHT), tensors.get(_BIAS)
    if (
        weight is None
        or not _fits(weight, weight.shape[:1], size)
        or not (bias is None or _fits(bias, weight.shape[:1]))
    ):
        return Unfit("a layer behind its pooling is of another type or size")
    return DenseFiles(weight, bias, activation)


def _fits(tensor: StoredTensor, outputs: tuple[int, ...], *inputs: int) -> bool:
    return tensor.dtype in TYPES and tensor.shape == (*outputs, *inputs) and 0 not in tensor.shape
