"""What computes the decoder of Whisper: linear maps, and attention over places. Knows rows, not layers.

in torch      any device and type
by kernels    float32 and bfloat16 on processors, and maps of fewer bits; see `native`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional

from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.model.speech.cache import KeysValues, Places


class Windows(Protocol):
    """Attention of one pass over windows. Queries [T, heads, head size] are those of all its tokens, and scaled."""

    def attend_own(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Store the tokens' keys and values; return [T, heads, head size] of those up to each one's own."""

    def attend_cross(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head size] of what each window has encoded."""


class Arithmetic(Protocol):
    """Computes with a decoder's maps."""

    @property
    def name(self) -> str:
        """Return what people read; its first word tells our kernels from others."""

    def linear(self, part: Any, rows: torch.Tensor) -> torch.Tensor:
        """Return [T, out] of rows [T, in], in the rows' type."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Return [positions, H] of features [mels, frames], on the CPU in float32."""

    def windows(self, rows: Sequence[SpeechRow], places: Places) -> Windows:
        """Return the attention of a pass."""


class InTorch:
    """Implements `Arithmetic`."""

    def __init__(self, module: Any, device: torch.device, why: str) -> None:
        """`why` our kernels do not compute: a clause."""
        self._encoder, self._device = module.model.encoder, device
        self.name = f"torch: transformers' encoder and decoder layers over places; not native: {why}"

    def __repr__(self) -> str:
        return f"InTorch({self.name!r})"

    def linear(self, part: Any, rows: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        out: torch.Tensor = part(rows)
        return out

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        moved = features.to(self._device, self._encoder.conv1.weight.dtype)[None]
        encoded: torch.Tensor = self._encoder(moved).last_hidden_state[0]
        return encoded

    def windows(self, rows: Sequence[SpeechRow], places: Places) -> Windows:
        """See `Arithmetic`."""
        return TorchWindows(rows, places)


class TorchWindows:
    """Implements `Windows`, one after the other."""

    def __init__(self, rows: Sequence[SpeechRow], places: Places) -> None:
        self._rows, self._spans, self._places = rows, spans_of(rows), places

    def __repr__(self) -> str:
        return f"TorchWindows({len(self._rows)})"

    def attend_own(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `Windows`."""
        mixed = torch.empty_like(query)
        for row, span in zip(self._rows, self._spans, strict=True):
            known = self._places.own_of(row.place, layer, len(row.token_ids))
            known.key[row.num_cached :] = key[span]
            known.value[row.num_cached :] = value[span]
            by_head = KeysValues(known.key.transpose(0, 1), known.value.transpose(0, 1))
            mixed[span] = attend(query[span], by_head, num_before=row.num_cached)
        return mixed

    def attend_cross(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """See `Windows`."""
        mixed = torch.empty_like(query)
        for row, span in zip(self._rows, self._spans, strict=True):
            mixed[span] = attend(query[span], self._places.cross_of(row.place, layer))
        return mixed


def spans_of(rows: Sequence[SpeechRow]) -> list[slice]:
    """Return where each row's new tokens stand in a pass."""
    spans, begin = [], 0
    for row in rows:
        end = begin + len(row.token_ids) - row.num_cached
        spans.append(slice(begin, end))
        begin = end
    return spans


def attend(query: torch.Tensor, known: KeysValues, *, num_before: int | None = None) -> torch.Tensor:
    """Return [T, heads, head size] of queries that see all of [heads, rows, head size].

    With `num_before` each sees those up to its own.
    """
    num_queries, num_known = len(query), known.key.shape[1]
    mask = None
    if num_before is not None and num_queries > 1:
        seen = torch.arange(num_known, device=query.device)
        mask = seen <= (num_before + torch.arange(num_queries, device=query.device))[:, None]
    asked = query.transpose(0, 1)[None], known.key[None], known.value[None]
    return functional.scaled_dot_product_attention(*asked, attn_mask=mask, scale=1.0)[0].transpose(0, 1)
