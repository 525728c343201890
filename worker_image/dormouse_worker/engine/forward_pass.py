"""The scheduler's nouns: what bounds a forward pass, one in the making, what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dormouse_worker.engine.batch import Moves, NewSequence, SampledToken, ScheduledSequence
from dormouse_worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one forward pass and of one sequence."""

    max_num_seqs: int  # running sequences; also the most rows whose logits one pass computes
    max_num_batched_tokens: int
    max_model_len: int
    caches_prefixes: bool = True
    max_batches_under_way: int = 1

    def __post_init__(self) -> None:
        assert min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len) > 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One request got a token; `finish_reason` set = it is complete and freed."""

    request: Request
    sampled: SampledToken
    finish_reason: str | None


@dataclass(slots=True)
class Counters:
    """Events since the start; they only grow."""

    preemptions: int = 0
    swaps: int = 0  # preemptions that went to host memory
    prefix_queries: int = 0  # tokens looked up in the prefix cache, at the first admission of a request
    prefix_hits: int = 0  # of these, found


@dataclass(slots=True)
class Pass:
    """A batch in the making, and what is left of its budgets."""

    tokens_left: int
    spare_logit_rows: int  # beside the one that every chosen sequence has for sampling
    may_admit: bool = True
    swap_in: Moves = ()
    new: list[NewSequence] = field(default_factory=list)
    sequences: list[ScheduledSequence] = field(default_factory=list)
