"""An EAGLE head beside its model: one layer that reads the model's states, and guesses what comes behind.

Of the state at a token and the vector of the token after it the head's layer makes a row, and of that a token and the
state that it takes for the next one. Its keys and values lie behind the model's layers in the same blocks, at the place
of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.native_plan import TYPES
from dormouse_worker.model.lean.native import NativeDecoder, describe_linear
from dormouse_worker.model.lean.parts import Embedding, Linear
from dormouse_worker.model.scratch import Floats, Scratch, address_of
from dormouse_worker.model.tensors import floats_of
from dormouse_worker.model.vision.placed import Seen
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native.library import Kernels

NEVER = -1e30  # the logit of a token that a head cannot say: finite, as no row is damaged by it


@dataclass(frozen=True, slots=True)
class HeadParts:
    """What heads of each kind have."""

    native: NativeDecoder  # its layer, and what makes logits of that
    first: Linear  # [H, columns], what its layer begins with
    embedding: Embedding  # the model's
    weights: WeightStore  # owns the memory of its own tensors
    dtype: str
    kernels: Kernels

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of its own tensors."""
        return sum(slot.num_bytes for slot in self.weights.layout.slots)

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
