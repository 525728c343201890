"""What the sampler is asked and what it answers, for one row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_worker.ipc import Sampling, TokenLogprobs


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How to choose the next token of one sequence, and the tokens before it.

    The sequences are only read, and only where a parameter looks at them. Lists are copied to be read, integer arrays
    are not.
    """

    sampling: Sampling
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # what another worker has generated before a resume included

    @property
    def position(self) -> int:
        """Return how many output tokens come before this one; keys its random number."""
        return len(self.output_token_ids)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen token of one row."""

    token_id: int
    logprobs: TokenLogprobs | None
