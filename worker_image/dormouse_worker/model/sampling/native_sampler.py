"""Chooses tokens with our kernels for processors: those that `sampler` chooses in torch, the very same."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from dormouse_worker.common.ipc import Sampling
from dormouse_worker.common.sampling import has_penalties
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.sampling.factors import factors_of, float32_factors
from dormouse_worker.model.sampling.sampling_row import Bits
from dormouse_worker.model.scratch import ALIGNMENT_BYTES, Floats, address_of
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

Bools = npt.NDArray[np.bool_]
Draws = Array[abi.Draw]


class NativeSampler:
    """Owns where rows are worked on, at most one for each thread. Not for two threads at once."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._size = (0, 0)  # desks and the vocabulary for which the workspace is made
        self._workspace = np.empty(0, dtype=np.uint8)
        self._batch = abi.Sample()

    def __repr__(self) -> str:
        return f"NativeSampler({self._kernels!r}, {self._workspace.nbytes} bytes)"

    def choose_bound(
        self, scores: Floats, draws: Draws, positions: Ints, allowed: Sequence[Bits | None]
    ) -> tuple[Ints, Bools]:
        """Return what `choose` does where rows may say only what their bits allow, None = all.

        What they must not say is forbidden in the scores, for good. Also returns which rows' largest score was finite
        before, which masks might hide; True for free rows.
        """
        batch, are_whole = self._batch, np.ones(len(scores), dtype=np.bool_)
        batch.allowed = (c_void_p * len(scores))(*(None if bits is None else bits.ctypes.data for bits in allowed))
        batch.num_bytes = (c_int64 * len(scores))(*(0 if bits is None else bits.nbytes for bits in allowed))
        batch.are_whole = address_of(are_whole)
        try:
            return self.choose(scores, draws, positions), are_whole
        finally:
            batch.allowed = None

    def choose(self, scores: Floats, draws: Draws, positions: Ints) -> Ints:
        """Return a token for each row of scores [N, V] at these output positions [N].

        Penalties change the scores, but only as long as the call lasts.
        """
        (num_rows, vocab_size), batch = scores.shape, self._batch
        tokens = np.empty(num_rows, dtype=np.int64)
        batch.num_rows, batch.vocab_size = num_rows, vocab_size
        batch.num_desks = min(self._kernels.num_threads, num_rows)
        self._fit(batch.num_desks, vocab_size)
        batch.scores, batch.tokens, batch.positions = address_of(scores), address_of(tokens), address_of(positions)
        batch.draws = draws
        self._kernels.sample(batch)
        return tokens

    def _fit(self, num_desks: int, vocab_size: int) -> None:
        most, made_for = self._size
        if num_desks > most or vocab_size != made_for:
            num_bytes = num_desks * self._kernels.desk_bytes(vocab_size)
            self._workspace = np.zeros(num_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
            self._batch.workspace = -(-address_of(self._workspace) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self._size = num_desks, vocab_size


def repeat_draws(draws: Draws, counts: Ints) -> Draws:
    """Return each of N draws so many times, [N] counts."""
    repeated = [draw for draw, count in zip(draws, counts.tolist(), strict=True) for _ in range(count)]
    return (abi.Draw * len(repeated))(*repeated)


def describe_draws(samplings: Sequence[Sampling], token_addresses: Sequence[int], num_prompt: Sequence[int]) -> Draws:
    """Return how rows choose, without masks and biases.

    Penalties look at a row's tokens, int64: the prompt's, then the output's. Address 0 = there are no penalties.
    """
    return (abi.Draw * len(samplings))(*map(_describe, samplings, token_addresses, num_prompt))


def _describe(sampling: Sampling, token_address: int, num_prompt: int) -> abi.Draw:
    (factor,) = factors_of([sampling.temperature]) if sampling.temperature > 0 else (0.0,)
    return abi.Draw(
        factor=factor,
        min_p=sampling.min_p,
        repetition=float32_factors([sampling.repetition_penalty])[0],
        top_p=sampling.top_p,
        presence=sampling.presence_penalty,
        frequency=sampling.frequency_penalty,
        top_k=sampling.top_k,
        seed=sampling.seed,
        choice_index=sampling.choice_index,
        tokens=token_address if has_penalties(sampling) else None,
        num_prompt=num_prompt,
    )
