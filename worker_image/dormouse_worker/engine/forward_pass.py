"""The scheduler's nouns: what bounds a forward pass, one in the making, what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.engine.batch import Moves, NewSequence, ScheduledSequence
from dormouse_worker.engine.images.turn import ImageTurn
from dormouse_worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one forward pass and of one sequence."""

    max_num_seqs: int  # running sequences; also the most rows whose logits one pass computes, those of drafts included
    max_num_batched_tokens: int
    max_model_len: int
    caches_prefixes: bool = True
    max_batches_under_way: int = 1
    looks_ahead: bool = False  # all running sequences are in each batch under way, and not only a part of them
    max_draft_tokens: int = 0  # of a sequence in one pass
    recalls_answers: bool = False  # drafts come from earlier answers, too
    asks_model: bool = False  # drafts come from a model beside; and what callers predict
    model_reads_along: bool = False  # it reads with each pass, and has nothing to read when it is asked

    def __post_init__(self) -> None:
        assert min(self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len) > 0
        assert not (self.looks_ahead and self.max_draft_tokens), "drafts go on from tokens that are known"


class Progress(msgspec.Struct, frozen=True, gc=False):
    """One request got tokens, sampled and forced ones; `finish_reason` set = it is complete."""

    request: Request
    token_ids: list[int]  # up to the one that completes it
    logprobs: list[TokenLogprobs] | None  # of each, where they are asked for
    finish_reason: str | None


class Counters(msgspec.Struct):
    """Events since the start; they only grow."""

    preemptions: int = 0
    swaps: int = 0  # preemptions that went to host memory
    prefix_queries: int = 0  # tokens looked up in the prefix cache, at the first admission of a request
    prefix_hits: int = 0  # of these, found
    image_queries: int = 0  # images, at the first admission of their request
    image_hits: int = 0  # of these, whose rows were there, or not needed because a known prefix covers them


@dataclass(slots=True)
class Pass:
    """A batch in the making, and what is left of its budgets."""

    tokens_left: int
    spare_logit_rows: int  # beside the one that every chosen sequence has for sampling
    images: ImageTurn
    may_admit: bool = True
    spare_draft_rows: int = 0  # of the spare ones, what nobody needs who waits
    swap_in: Moves = ()
    new: list[NewSequence] = field(default_factory=list)
    sequences: list[ScheduledSequence] = field(default_factory=list)

    def end_of(self, request: Request) -> int:
        """Return how far the request goes in this pass; no further than it is where one of its images must wait.

        Nor where its source finds no room, which an encoder reads whole.
        """
        start = request.num_computed_tokens
        end = min(request.num_tokens, start + self.tokens_left)
        if start < request.source_end > end:
            return start
        if request.takes_prompt_rows:
            end = min(end, start + 1 + self.spare_logit_rows)
        return self.images.reach(request, end, self.sequences) if request.is_seeing_prompt else end

    def take(self, request: Request, scheduled: ScheduledSequence) -> None:
        """Put the request's next tokens in and take them off the budgets."""
        if request.is_seeing_prompt:
            self.images.take(request, scheduled.start, scheduled.end)
        self.sequences.append(scheduled)
        num_tokens = scheduled.end - scheduled.start
        self.tokens_left -= num_tokens
        if request.takes_prompt_rows:
            self.spare_logit_rows -= scheduled.num_known - scheduled.start - 1
        if scheduled.draft_token_ids:
            self.spare_logit_rows -= len(scheduled.draft_token_ids)
            self.spare_draft_rows -= len(scheduled.draft_token_ids)
        assert self.spare_logit_rows >= 0, "a pass has a row with logits for each that it promised"
