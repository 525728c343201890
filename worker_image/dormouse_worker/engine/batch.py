"""What the scheduler hands to the ranks and what comes back: frozen, free of tensors, the same for every device.

A rank remembers the sequences it was told of. It gets a sequence whole when it is admitted (`NewSequence`) and
afterwards only what changed (`ScheduledSequence`); the tokens that it samples, and what these force, it appends by
itself. In a group of ranks they come to all of them by `append_sampled`.

They are msgspec's structs: a step makes two for each sequence, and a frozen dataclass takes several times as long. None
can be part of a cycle, so the garbage collector need not look at those (`gc=False`).
"""

from __future__ import annotations

import msgspec

from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import Sampling, TokenLogprobs

BlockIds = tuple[list[int], ...]  # for each layer group a list, in token order
Drafts = tuple[int, ...]  # token ids that nobody has sampled
Moves = tuple[tuple[int, int], ...]  # pairs (from, to) of blocks


class NewSequence(msgspec.Struct, frozen=True):
    """Everything a rank must know of a sequence besides its blocks."""

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]  # not empty after a preemption, or when another worker began
    sampling: Sampling
    lora_slot: int = -1  # where its adapter lies; -1 = it has none
    lora_start: int = 0  # its first token that has the adapter; those before are the base's
    images: tuple[ImageInput, ...] = ()
    num_virtual_tokens: int = 0  # its first tokens, in whose place vectors of its adapter stand
    num_given_tokens: int = 0  # its first tokens, of which its adapter brings keys and values; no pass has them
    num_source_tokens: int = 0  # the first of its prompt, which an encoder reads; 0 = there is no encoder

    @property
    def num_tokens(self) -> int:
        """Return how many tokens are known."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part [start, end) of one sequence that a forward pass computes.

    The last tokens of it may be drafts, which nobody has sampled: their rows are scored as if they had been, and so
    many of them are taken as are what their rows say.
    """

    request_id: str
    start: int  # tokens of this sequence already in the cache
    end: int
    new_block_ids: BlockIds  # appended to what the rank knows; together enough for [0, end)
    samples: bool  # False = a chunk of a prompt with more to come
    draft_token_ids: Drafts = ()  # at [end - how many, end); only where it samples
    num_wanted: int = 0  # drafts of the model beside, for the next pass; blocks are there for them

    @property
    def num_tokens(self) -> int:
        """Return the number of rows in the packed input."""
        return self.end - self.start

    @property
    def num_known(self) -> int:
        """Return where the tokens end that are no drafts."""
        return self.end - len(self.draft_token_ids)


class EncodeImage(msgspec.Struct, frozen=True, gc=False):
    """An image whose rows sequences of the pass need. They stay under its digest until they are freed."""

    digest: bytes
    tensors: str  # as in `ImageInput`
    num_bytes: int
    num_rows: int
    grid: tuple[int, int, int] | None = None


class Batch(msgspec.Struct, frozen=True):
    """One forward pass, never empty. A rank carries out the fields in their order."""

    is_fresh: bool  # first of all forget every sequence
    released: tuple[str, ...]  # then these: ended, aborted or preempted; unknown ones are ignored
    swap_out: Moves  # device → host memory
    swap_in: Moves  # host memory → device
    new: tuple[NewSequence, ...]
    sequences: tuple[ScheduledSequence, ...]
    lora_moves: tuple[tuple[int, str], ...] = ()  # before all else: slots, and the digests of what comes to lie there
    freed_images: tuple[bytes, ...] = ()  # digests
    encode: tuple[EncodeImage, ...] = ()  # behind the freed ones, in order
    ahead: EncodeImage | None = None  # later passes need it: in pieces between passes; what no batch names is dropped
    num_image_rows: int = 0  # of prompts with images, beside text: if there are any, what is `ahead` has no time
    known_images: tuple[bytes, ...] = ()  # digests; before the freed ones a fresh batch forgets all images but these

    @property
    def num_tokens(self) -> int:
        """Return the number of rows of the packed input."""
        return sum(sequence.num_tokens for sequence in self.sequences)

    @property
    def request_ids(self) -> list[str]:
        """Return whose sequences these are, in order."""
        return [sequence.request_id for sequence in self.sequences]


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next token of one sequence, and those that can only follow it."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    forced: tuple[int, ...] = ()  # its grammar allows nothing else: known without a pass
    expected: tuple[int, ...] = ()  # the same where a pass has to say it, for what the request asks besides: a draft


class Proposals(msgspec.Struct, frozen=True, gc=False):
    """What the model beside thinks comes next, and what it took to say so."""

    token_ids: dict[str, Drafts]  # by request, for those of which some were wanted; perhaps fewer
    seconds: float = 0.0  # of the pass's time
    seconds_per_token: float = 0.0  # of one pass that proposes a token for each; 0 = there was none
    has_failed: bool = False


class ModelOutput(msgspec.Struct, frozen=True):
    """What one forward pass gave."""

    # for each sequence that `samples` its next token; behind it, in order, those after drafts that were right
    sampled: list[SampledToken]
    # request id → of the prompt tokens at [start + 1, end + 1) of the pass, for requests that ask for them
    prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
    # whose logits were not finite: NaN among them, or no finite largest one. Their tokens mean nothing
    not_finite: tuple[str, ...] = ()
    # request id → why its grammar leaves no token. Theirs in `sampled` mean nothing
    stuck: dict[str, str] = {}
    # digest → why the image cannot be encoded. Whatever was computed with its rows means nothing
    unreadable: dict[bytes, str] = {}
    # digests of images that were `ahead`, and whose rows are there now
    encoded: tuple[bytes, ...] = ()
    proposals: Proposals | None = None  # None = nobody wanted any


def single(sequence: NewSequence, block_ids: BlockIds, *, start: int = 0) -> Batch:
    """Return a batch of one sequence that stands alone: all its tokens from `start` on, and one sampled."""
    scheduled = ScheduledSequence(sequence.request_id, start, sequence.num_tokens, block_ids, samples=True)
    return Batch(is_fresh=True, released=(), swap_out=(), swap_in=(), new=(sequence,), sequences=(scheduled,))
