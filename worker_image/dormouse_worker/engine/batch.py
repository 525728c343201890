"""What the scheduler hands to the model and what comes back: frozen, free of tensors, the same for every device."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_worker.ipc import Sampling, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """The part [start, end) of one sequence that a forward pass computes."""

    request_id: str
    token_ids: list[int]  # the tokens at [start, end)
    start: int  # tokens of this sequence already in the cache
    block_ids: list[int]  # enough for [0, end)
    sampling: Sampling
    samples: bool  # False = a chunk of a prompt with more to come
    num_outputs: int  # output tokens before the one to be sampled; the position that keys its random number

    @property
    def end(self) -> int:
        """Return the length of the sequence after this pass."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass. Never empty."""

    sequences: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Return the number of rows of the packed input."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def request_ids(self) -> list[str]:
        """Return whose sequences these are, in order."""
        return [sequence.request_id for sequence in self.sequences]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of one sequence."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
