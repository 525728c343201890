"""A sequence as its rank knows it, and the sequences of a pass: nearly every pass has those of the pass before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from dormouse_worker.common.sampling import is_plain, needs_logits_only, takes_forced, takes_likeliest
from dormouse_worker.engine.batch import NewSequence
from dormouse_worker.engine.grammars import Matcher
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.sampling.native_sampler import Draws, describe_draws
from dormouse_worker.model.sampling.sampling_row import Bits
from dormouse_worker.model.scratch import address_of


class RankSequence:
    """Implements `SamplingRow` over the buffers of all sequences, without a copy of any token."""

    __slots__ = (
        "_counts",
        "_tokens",
        "asks_for_prompt",
        "images",
        "is_plain",
        "lora_slot",
        "lora_start",
        "masks",
        "matcher",
        "needs_logits_only",
        "num_blocks",
        "num_prompt_tokens",
        "num_source_tokens",
        "num_virtual_tokens",
        "prompt_slot",
        "request_id",
        "rope",
        "row",
        "sampling",
        "source_end",
        "takes_forced",
        "takes_likeliest",
    )

    def __init__(self, new: NewSequence, row: int, token_ids: Ints, counts: Ints, num_groups: int) -> None:
        """Write its tokens into the row's place: token_ids [rows, longest], counts [rows] of those that are known."""
        self.request_id = new.request_id
        self.row = row
        self.sampling = new.sampling
        self.num_virtual_tokens = new.num_virtual_tokens
        self.lora_slot = -1 if new.num_virtual_tokens or new.num_given_tokens else new.lora_slot
        self.prompt_slot = new.lora_slot  # where its soft prompt lies, if it has one
        self.lora_start = new.lora_start
        self.images = new.images
        self.rope: Ints | None = None  # set by its owner: see `rope.prompt_positions`
        self.takes_likeliest = takes_likeliest(new.sampling)
        self.is_plain = is_plain(new.sampling)
        self.needs_logits_only = needs_logits_only(new.sampling)
        self.takes_forced = takes_forced(new.sampling)
        self.matcher: Matcher | None = None  # set with the first mask
        self.masks: Sequence[
            Bits
        ] = ()  # set by `constraints` before each pass, where a grammar binds it; see `allowed`
        self.asks_for_prompt = new.sampling.prompt_logprobs is not None
        self.num_prompt_tokens = len(new.prompt_token_ids)
        self.num_source_tokens = new.num_source_tokens
        self.source_end = 0  # set by its owner: where the source's blocks end, which an encoder reads
        self.num_blocks = [0] * num_groups
        self._tokens, self._counts = token_ids[row], counts
        self._tokens[: new.num_tokens] = new.prompt_token_ids + new.output_token_ids
        counts[row] = new.num_tokens

    def __repr__(self) -> str:
        return f"RankSequence({self.request_id}, row {self.row}, {self.num_prompt_tokens} + {self.position} tokens)"

    @property
    def prompt_token_ids(self) -> Ints:
        """Return what was said before the output: the prompt, but for a source that an encoder reads."""
        prompt: Ints = self._tokens[self.source_end : self.num_prompt_tokens]
        return prompt

    @property
    def num_said_before(self) -> int:
        """Return how many tokens that is."""
        return self.num_prompt_tokens - self.source_end

    def prompt_part(self, start: int, end: int) -> Ints:
        """Return the tokens at these places of the whole prompt."""
        part: Ints = self._tokens[start:end]
        return part

    @property
    def output_token_ids(self) -> Ints:
        """Return the output so far."""
        output: Ints = self._tokens[self.num_prompt_tokens : self._counts[self.row]]
        return output

    def read_output(self, count: int) -> Ints:
        """Return the first tokens of the output, and of the drafts that are written behind it."""
        output: Ints = self._tokens[self.num_prompt_tokens : self.num_prompt_tokens + count]
        return output

    @property
    def allowed(self) -> Bits | None:
        """Return which tokens may come next; None = it is free."""
        return self.allowed_behind(0)

    def allowed_behind(self, num_drafts: int) -> Bits | None:
        """Return which tokens may come behind its first drafts: none at all behind one that may not come itself."""
        masks = self.masks
        if not masks:
            return None
        return masks[num_drafts] if num_drafts < len(masks) else np.zeros_like(masks[0])

    @property
    def token_address(self) -> int:
        """Return where its tokens lie, what was said before and the output, int64."""
        return address_of(self._tokens[self.source_end :])

    @property
    def position(self) -> int:
        """Return how long the output is."""
        return int(self._counts[self.row]) - self.num_prompt_tokens

    @property
    def num_left(self) -> int:
        """Return how many tokens may follow at most."""
        longest = len(self._tokens) - 1  # see `InputBatch`
        return min(self.sampling.max_tokens - self.position, longest - int(self._counts[self.row]))


_row, _num_prompt_tokens, _token_address, _sampling = (
    attrgetter(name) for name in ("row", "num_prompt_tokens", "token_address", "sampling")
)
_num_said_before = attrgetter("num_said_before")
_lora_slot, _lora_start = attrgetter("lora_slot"), attrgetter("lora_start")
_takes_likeliest, _is_plain, _needs_logits_only, _asks = (
    attrgetter(name) for name in ("takes_likeliest", "is_plain", "needs_logits_only", "asks_for_prompt")
)


class BatchRows:
    """Some sequences in their order, and what follows from them alone."""

    def __init__(self, sequences: Sequence[RankSequence]) -> None:
        self.sequences = sequences
        self.request_ids = [sequence.request_id for sequence in sequences]
        self.rows = np.fromiter(map(_row, sequences), np.int64, len(sequences))
        self.take_likeliest = all(map(_takes_likeliest, sequences))
        self.are_plain = all(map(_is_plain, sequences))
        self.need_logits_only = all(map(_needs_logits_only, sequences))
        self.ask_for_prompts = any(map(_asks, sequences))
        self.bound = [sequence for sequence in sequences if sequence.sampling.grammar is not None]
        # the rows once more, as what reads them fastest
        self.index: slice | Ints = self.rows if (run := _run_of(self.rows)) is None else run

    def __repr__(self) -> str:
        return f"BatchRows({', '.join(self.request_ids)})"

    def __len__(self) -> int:
        return len(self.sequences)

    @cached_property
    def seeing(self) -> list[tuple[int, RankSequence]]:
        """Return the sequences with images, and their places."""
        return [(place, sequence) for place, sequence in enumerate(self.sequences) if sequence.images]

    @cached_property
    def prompted(self) -> list[tuple[int, RankSequence]]:
        """Return the sequences with soft prompts, and their places."""
        return [(place, sequence) for place, sequence in enumerate(self.sequences) if sequence.num_virtual_tokens]

    @cached_property
    def is_free(self) -> npt.NDArray[np.bool_]:
        """Return of each sequence whether the logits alone decide about its tokens."""
        return np.fromiter(map(_needs_logits_only, self.sequences), np.bool_, len(self))

    @cached_property
    def free(self) -> BatchRows:
        """Return those of which it is so."""
        return BatchRows([sequence for sequence in self.sequences if sequence.needs_logits_only])

    @cached_property
    def asking(self) -> BatchRows:
        """Return the others."""
        return BatchRows([sequence for sequence in self.sequences if not sequence.needs_logits_only])

    @cached_property
    def lora_slots(self) -> Ints | None:
        """Return where the sequences' adapters lie, -1 = there is none; None = no sequence has one."""
        slots = np.fromiter(map(_lora_slot, self.sequences), np.int64, len(self))
        return slots if (slots >= 0).any() else None

    @cached_property
    def lora_starts(self) -> Ints | None:
        """Return from which token on the sequences have their adapters; None = each from its beginning."""
        starts = np.fromiter(map(_lora_start, self.sequences), np.int64, len(self))
        return starts if starts.any() else None

    @cached_property
    def num_prompt_tokens(self) -> Ints:
        """Return how long the prompts are."""
        return np.fromiter(map(_num_prompt_tokens, self.sequences), np.int64, len(self))

    @cached_property
    def draws(self) -> Draws:
        """Return how the sequences choose their tokens, for our kernels; right if they are plain."""
        sequences = self.sequences
        return describe_draws(
            [*map(_sampling, sequences)], [*map(_token_address, sequences)], [*map(_num_said_before, sequences)]
        )

    def take(self, table: Ints, num_columns: int) -> Ints:
        """Return the first columns of the sequences' rows: a view where they follow each other."""
        return table[self.index, :num_columns]


def _run_of(rows: Ints) -> slice | None:
    """Return the rows if each follows the one before, as they do until somebody leaves between them."""
    if not len(rows) or (np.diff(rows) != 1).any():
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1)
