"""An EAGLE head by our kernels: one layer that reads its model's states, and guesses what comes behind.

Of the state at a token and the vector of the token after it the head's layer makes a row, and of that a token and the
state that it takes for the next one. Its keys and values lie behind the model's layers in the same blocks, at the place
of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.native_plan import TYPES, NativePlan
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.bare.loader import BareModel
from dormouse_worker.model.drafting.load_head import Beside, LoadedHead
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.kv_cache import CacheSpec, KVCache
from dormouse_worker.model.lean.native import NativeDecoder, describe_linear
from dormouse_worker.model.lean.parts import Decoder, Embedding, Linear, Rotary
from dormouse_worker.model.scratch import Floats, Scratch, address_of
from dormouse_worker.model.tensors import ARRAY_DTYPES, floats_of
from dormouse_worker.model.vision.placed import Seen
from dormouse_worker.native.library import Kernels

NEVER = -1e30  # the logit of a token that a head cannot say: finite, as no row is damaged by it


@dataclass(frozen=True, slots=True)
class HeadParts:
    """What heads of each kind have."""

    native: NativeDecoder  # its layer, and what makes logits of that
    first: Linear  # [H, columns], what its layer begins with
    embedding: Embedding  # the model's
    dtype: str
    kernels: Kernels

    @property
    def size(self) -> int:
        """Return H."""
        return self.embedding.size

    def look_up(self, token_ids: Ints) -> Floats:
        """Return the vectors of tokens, [T, H]."""
        return floats_of(self.embedding.weight[token_ids])

    def project(self, rows: Floats) -> Floats:
        """Return what the first map makes of rows [T, columns], [T, H]."""
        out = np.empty((len(rows), self.size), dtype=np.float32)
        self.kernels.multiply(
            TYPES[self.dtype],
            address_of(rows),
            describe_linear(self.first),
            address_of(out),
            num_rows=len(rows),
            columns=rows.shape[1],
            num_outputs=self.size,
        )
        return out


class Head(Protocol):
    """A head over its model's embedding."""

    @property
    def parts(self) -> HeadParts:
        """Return what it computes with."""

    def read_scratch(self) -> Scratch:
        """Return the scratch of a model whose states it reads: of all rows."""

    def own_scratch(self) -> Scratch:
        """Return the scratch of its own passes: with states of the rows that are wanted, which it reads next."""

    def begin(self, token_ids: Ints, states: Floats) -> Seen:
        """Return what its layer begins with, of tokens [T] and the states before them, the model's or its own."""

    def widen(self, logits: Floats) -> Floats:
        """Return logits of the model's vocabulary, [rows, V], of its own."""


@dataclass(frozen=True, slots=True)
class FirstHead:
    """A head of EAGLE's first version: guesses the state that the model multiplies with its output matrix."""

    parts: HeadParts  # whose first map reads a token's vector, and the state before it

    def read_scratch(self) -> Scratch:
        """See `Head`."""
        return Scratch(self.parts.size, keeps_all_states=True)

    def own_scratch(self) -> Scratch:
        """See `Head`."""
        return Scratch(self.parts.size)

    def begin(self, token_ids: Ints, states: Floats) -> Seen:
        """See `Head`."""
        return Seen(self.parts.project(np.concatenate([self.parts.look_up(token_ids), states], axis=1)))

    def widen(self, logits: Floats) -> Floats:
        """See `Head`: both vocabularies are the same."""
        return logits


@dataclass(frozen=True, slots=True)
class ThirdHead:
    """An EAGLE-3 head: reads what comes of several layers of its model, and later what came of its own."""

    parts: HeadParts  # whose first map reads the model's states
    depths: tuple[int, ...]  # behind how many layers of the model
    targets: Ints | None  # [Vd] which token of the model each of its own is; None = the same
    vocab_size: int

    def read_scratch(self) -> Scratch:
        """See `Head`."""
        return Scratch(len(self.depths) * self.parts.size, keeps_all_states=True, depths=self.depths)

    def own_scratch(self) -> Scratch:
        """See `Head`."""
        return Scratch(self.parts.size, depths=(1,))

    def begin(self, token_ids: Ints, states: Floats) -> Seen:
        """See `Head`. States of the model are as wide as the first map reads, which its own are not."""
        is_own = states.shape[1] != self.parts.first.weight.shape[1]
        return Seen(states if is_own else self.parts.project(states), beside=self.parts.look_up(token_ids))

    def widen(self, logits: Floats) -> Floats:
        """See `Head`."""
        if self.targets is None:
            return logits
        wide = np.full((len(logits), self.vocab_size), NEVER, dtype=np.float32)
        wide[:, self.targets] = logits
        return wide


class NativePasses:
    """Implements `HeadPasses` by our kernels. Owns what its passes are computed in."""

    def __init__(self, head: Head, cache: KVCache, scratch: Scratch) -> None:
        """`cache` is the head's part; `scratch` keeps the states of all rows of the model's passes."""
        self._head = head
        self._cache = cache
        self._scratch = scratch
        self._own = head.own_scratch()

    def __repr__(self) -> str:
        return f"NativePasses({self._head.parts.native!r})"

    def read(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> Floats:
        """See `HeadPasses`."""
        return self._compute(packed, token_ids, self._scratch.states[states], rows)

    def go_on(self, packed: PackedInput, token_ids: Ints, states: Ints, rows: Ints) -> Floats:
        """See `HeadPasses`."""
        return self._compute(packed, token_ids, self._own.states[states], rows)

    def _compute(self, packed: PackedInput, token_ids: Ints, states: Floats, rows: Ints) -> Floats:
        parts, seen = self._head.parts, self._head.begin(token_ids, states)
        plans = [NativePlan(parts.kernels, group) for group in packed.groups]
        logits = parts.native.forward(packed, rows, PagedContext(self._cache, plans, self._own), seen=seen)
        return self._head.widen(logits)


def beside(model: BareModel) -> Beside:
    """Return what a head has to go with."""
    decoder = model.native.decoder
    assert decoder.embedding is not None, "the whole model is here"
    dtype = ARRAY_DTYPES[model.dtype]
    return Beside(decoder.embedding.size, model.vocab_size, len(decoder.layers), dtype, model.quantization)


def join(model: BareModel, loaded: LoadedHead, kernels: Kernels) -> tuple[BareModel, Head]:
    """Return the model as it lies in one cache with its head's layer, and the head."""
    decoder = model.native.decoder
    assert decoder.embedding is not None, "the whole model is here"
    own = Decoder(
        embedding=None,
        rotary=Rotary(loaded.frequencies, 1.0),
        layers=(loaded.layer,),
        norm=loaded.norm,
        head=loaded.output or decoder.head,
    )
    parts = HeadParts(NativeDecoder(own, kernels), loaded.first, decoder.embedding, model.dtype, kernels)
    spec = model.cache_spec.beside(CacheSpec.of((loaded.stored,), model.cache_spec.block_size))
    head = ThirdHead(parts, loaded.depths, loaded.targets, model.vocab_size) if loaded.depths else FirstHead(parts)
    return replace(model, cache_spec=spec), head
