"""What the decoder of Llama and its kin consists of. Data alone.

`decoder` computes with it in torch, `native` by our kernels. An engine without torch has numpy's arrays for tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.tensors import Dtype, Tensor

if TYPE_CHECKING:
    from dormouse_worker.model.adapters.rows import Lora
    from dormouse_worker.model.quantized.formats import Format
    from dormouse_worker.model.quantized.rounding import Rounding


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map; the weight is [out, in]."""

    weight: Tensor
    bias: Tensor | None
    lora: Lora | None = None  # what adapters have for it; None = none can
    scale: Tensor | None = None  # [out] of a weight of fewer bits
    format: Format | Rounding | None = None  # of such a weight


@dataclass(frozen=True, slots=True)
class Embedding:
    """A vector [H] for each token; the weight is [V, H], or the rank's rows of it."""

    weight: Tensor
    dtype: Dtype
    size: int  # H
    scale: Tensor | None = None  # [V] of a weight of fewer bits
    format: Format | Rounding | None = None  # of such a weight


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A norm over the last dimension, computed in float32."""

    weight: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rotary:
    """The frequencies [D / 2] in float32, and what a scaled embedding multiplies cosines and sines by."""

    inv_freq: Tensor
    attention_factor: float
    axes: Tensor | None = None  # [D / 2] uint8: time, height or width, by which each turns; None = by all alike


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention block. Rows of `qkv`: Hq query heads, Hkv key heads, Hkv value heads, D each."""

    call: AttentionCall
    num_heads: int
    num_kv_heads: int
    norm: RMSNorm | None  # None = what comes in is projected as it is
    qkv: Linear
    head_norms: tuple[RMSNorm, RMSNorm] | None  # of query and key heads
    output: Linear
    beside_norm: RMSNorm | None = None  # of [T, H] that stands before what comes in, so that `qkv` is [·, 2 H]


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """One layer's feed-forward block. Rows of `gate_up`: the gate's, then the other half's."""

    norm: RMSNorm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Layer:
    """An attention block and a feed-forward block, each added to what came in."""

    attention: Attention
    mlp: GatedMLP

    @property
    def maps(self) -> tuple[Linear, ...]:
        """Return its linear maps."""
        return self.attention.qkv, self.attention.output, self.mlp.gate_up, self.mlp.down


@dataclass(frozen=True, slots=True)
class Decoder:
    """A model, or what one rank has of it."""

    embedding: Embedding | None  # None = another stage embeds
    rotary: Rotary
    layers: Sequence[Layer]
    norm: RMSNorm | None  # None = another stage computes logits
    head: Linear | None
    vocabulary: Vocabulary | None = None  # the rank's part of embedding and head; None = it has all

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.layers)} layers)"
