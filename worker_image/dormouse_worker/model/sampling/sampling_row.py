"""What the sampler is asked and what it answers, for one row of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from dormouse_worker.common.ipc import Sampling, TokenLogprobs

Bits = npt.NDArray[np.uint8]  # one for each token, the lowest first; tokens beyond have 0
TokenIds = Sequence[int] | npt.NDArray[np.int64]  # lists are copied to be read, arrays are not


class SamplingRow(Protocol):
    """How to choose the next token of one sequence, and the tokens before it.

    The tokens are only read, and only where a parameter looks at them.
    """

    @property
    def sampling(self) -> Sampling:
        """Return the parameters."""

    @property
    def prompt_token_ids(self) -> TokenIds:
        """Return what was said before the output."""

    @property
    def output_token_ids(self) -> TokenIds:
        """Return what was generated, by another worker before a resume included."""

    @property
    def allowed(self) -> Bits | None:
        """Return which tokens its grammar allows now; None = it is free. At least one is."""

    @property
    def position(self) -> int:
        """Return how many output tokens come before this one; keys its random number."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The chosen token of one row."""

    token_id: int
    logprobs: TokenLogprobs | None
    is_finite: bool = True  # whether the row of logits has a finite largest one, and no NaN
    is_possible: bool = True  # False = bound by a grammar, and nothing that it allows is left
