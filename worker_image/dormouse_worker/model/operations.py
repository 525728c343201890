"""Operations of torch by what matters to who computes them another way. Knows no models."""

from __future__ import annotations

import torch
from torch.nn import functional

STRICT = frozenset(  # whose arguments must be of one kind; all others make what is mixed wider by themselves
    {
        functional.linear,
        functional.layer_norm,
        functional.multi_head_attention_forward,
        functional.rms_norm,
        functional.scaled_dot_product_attention,
        torch.bmm,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
    }
)
LARGE = STRICT | {  # which take long: of one thread several times as long
    functional.gelu,
    functional.silu,
    functional.softmax,
    torch._grouped_mm,  # noqa: SLF001  # what experts call
    torch.addmm,
    torch.baddbmm,
    torch.einsum,
    torch.mm,
    torch.sigmoid,
    torch.softmax,
}
