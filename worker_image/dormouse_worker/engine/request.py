"""One request as the engine sees it: the nouns that scheduler and allocator talk about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.common.sampling import needs_logits_only
from dormouse_worker.engine.block_tables import Shortage
from dormouse_worker.engine.drafts.sequence import SequenceDrafts
from dormouse_worker.engine.grammars import Preparation
from dormouse_worker.engine.prefix import BlockHash, hash_block, name_adapter, name_images, root_hash, source_hash


@dataclass(slots=True, eq=False)
class Request:
    """A sequence that grows by one token per step, by those that its grammar forces behind it, and by right drafts.

    Three lengths, `num_computed_tokens < num_tokens` while it lives and `num_prompt_tokens <= num_tokens`:
    computed tokens have keys and values in the cache, or will have them once the batches under way have come; the rest
    waits for a forward pass. A promised token counts as one: it is what a batch under way will sample.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: Sampling
    arrival_s: float
    output_token_ids: list[int] = field(default_factory=list)  # begins with those that another worker generated
    priority: int = 0  # lower goes first
    cache_salt: str = ""
    adapter: str = ""  # the digest of its LoRA adapter; "" = the base model alone
    lora_start: int = 0  # its first token that has the adapter; those before are the base's
    num_virtual_tokens: int = 0  # its first tokens, which its adapter brings as vectors
    num_given_tokens: int = 0  # the same where these are keys and values: no pass computes them
    lora_slot: int = -1  # set by the scheduler while it runs: where the adapter lies
    num_overtakes: int = 0  # set by the scheduler: later requests that ran first while it had no slot
    number: int = 0  # set by the scheduler, once: the order of arrival
    num_computed_tokens: int = 0  # set by the scheduler: raised with each batch, 0 after a preemption by recompute
    num_promised_tokens: int = 0  # set by the scheduler: one for each batch under way that samples for it
    num_draft_tokens: int = 0  # set by the scheduler: in the batch under way, behind the computed ones
    num_cached_tokens: int = 0  # set by the scheduler at the first admission: found in the prefix cache
    first_scheduled_s: float | None = None  # set by the scheduler, once
    shortage: Shortage | None = None  # set by the scheduler: why it found no room; None once it runs
    has_answered: bool = False  # set by the engine with the first token that it sends
    preparation: Preparation | None = None  # set by the engine: of its grammar, which it keeps for the ranks
    is_leaving: bool = False  # set by the scheduler: aborted or ended while under way, freed with its last batch
    num_told_logprobs: int = field(init=False)  # raised by the engine: prompt log-probabilities sent
    prediction_token_ids: Sequence[int] = ()  # the output as its caller expects it
    expected_token_ids: Sequence[int] = ()  # set with each token: its grammar allows nothing else behind it
    proposed_token_ids: Sequence[int] = ()  # set with each pass: what the model beside expects behind it
    drafts: SequenceDrafts | None = None  # set by `Speculation`
    num_accepted_prediction_tokens: int = 0  # set by `Speculation`; told with the next output
    num_rejected_prediction_tokens: int = 0
    num_scored_draft_tokens: int = 0  # the same of all drafts
    num_accepted_draft_tokens: int = 0
    remote_decode: bool = False  # another worker goes on with it once its prompt is computed
    num_handed_blocks: int = 0  # set by `Departures`: so many of its first ones the store was given
    departs_by_s: float | None = None  # set by `Departures` once it has answered
    restore: Preparation | None = None  # set by the block keeper: blocks of its beginning that are read from a store
    images: Sequence[ImageInput] = ()
    encoded_ahead: tuple[bytes, ...] = ()  # set by the scheduler: digests of images encoded for it while it waited
    num_source_tokens: int = 0  # the first of its prompt, which an encoder reads; 0 = there is no encoder
    source_end: int = 0  # where the blocks end in which the encoder's states lie: they are computed in one pass
    images_end: int = field(init=False)  # where the tokens end that stand for images; 0 = there are none
    num_prompt_tokens: int = field(init=False)
    wants_prompt_logprobs: bool = field(init=False)  # every prompt token goes through a pass that keeps its logits
    asks_host: bool = field(init=False)  # about each token: the next batch begins where all of them are known
    _block_hashes: list[BlockHash] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.prompt_token_ids, "a request has at least one prompt token"
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.num_told_logprobs = self.num_virtual_tokens  # of which nobody is told any
        self.images_end = self.images[-1].end if self.images else 0
        self.wants_prompt_logprobs = self.sampling.prompt_logprobs is not None
        self.asks_host = not needs_logits_only(self.sampling)

    @property
    def is_held(self) -> bool:
        """Return whether it waits for its grammar, or for blocks that are read: others may go before it."""
        return any(not each.is_done() for each in (self.preparation, self.restore) if each is not None)

    def await_held(self, timeout_s: float) -> None:
        """Wait so long at most for what it waits for, or a part of it."""
        for each in (self.preparation, self.restore):
            if each is not None and not each.is_done(timeout_s):
                return

    @property
    def order(self) -> tuple[int, int]:
        """Return the place in line: priority, then arrival."""
        return self.priority, self.number

    @property
    def num_tokens(self) -> int:
        """Return how many tokens there are: prompt, output, and what is promised."""
        return self.num_prompt_tokens + len(self.output_token_ids) + self.num_promised_tokens

    @property
    def num_known_tokens(self) -> int:
        """Return how many tokens are known: prompt and output."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Return how many tokens still need a forward pass (1 while decoding)."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_prompt(self) -> bool:
        """Return whether tokens of its prompt are yet to be computed."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def is_seeing_prompt(self) -> bool:
        """Return whether tokens of its prompt are yet to be computed, which has images."""
        return self.images_end > 0 and self.is_prompt

    @property
    def awaits_images(self) -> bool:
        """Return whether tokens are yet to be computed that stand for images."""
        return self.num_computed_tokens < self.images_end

    @property
    def awaits_prompt_logprobs(self) -> bool:
        """Return whether it still needs logits of prompt tokens besides the row that it samples from."""
        return self.wants_prompt_logprobs and self.num_computed_tokens < self.num_prompt_tokens - 1

    @property
    def takes_prompt_rows(self) -> bool:
        """Return whether each token of its next pass counts as a row with logits, and not only the last."""
        return self.wants_prompt_logprobs and self.is_prompt

    def token_ids(self, start: int, end: int) -> list[int]:
        """Return the known tokens at positions [start, end)."""
        split = self.num_prompt_tokens
        return self.prompt_token_ids[start:end] + self.output_token_ids[max(0, start - split) : max(0, end - split)]

    def block_hashes(self, num_tokens: int, block_size: int) -> Sequence[BlockHash]:
        """Return the names of the full blocks of the first `num_tokens` tokens, and of more if they are known.

        Each is computed once; what is returned grows later and must not be changed.
        """
        count = num_tokens // block_size
        while len(self._block_hashes) < count:
            parent = self._block_hashes[-1] if self._block_hashes else self._root()
            start = len(self._block_hashes) * block_size
            beside = self._beside(start, start + block_size)
            self._block_hashes.append(hash_block(parent, self.token_ids(start, start + block_size), beside))
        return self._block_hashes

    @property
    def named_hashes(self) -> Sequence[BlockHash]:
        """Return the names of blocks that are known so far."""
        return self._block_hashes

    def adapter_within(self, end: int) -> str | None:
        """Return the adapter that the tokens before `end` have, if it begins there."""
        return self.adapter if self.adapter and self.lora_start < end else None

    def extra_keys(self, start: int, end: int) -> list[str]:
        """Return what a block depends on besides tokens, in vLLM's order: adapter, images, salt in the first."""
        adapter = self.adapter_within(end)
        images = [each.name.hex() for each in self.images if each.stands_in(start, end)]
        salt = [self.cache_salt] if self.cache_salt and not start else []
        return [*([adapter] if adapter else ()), *images, *salt]

    def _root(self) -> BlockHash:
        """Return what stands before the first block's name."""
        root, num_source = root_hash(self.cache_salt), self.num_source_tokens
        return source_hash(root, self.prompt_token_ids[:num_source]) if num_source else root

    def _beside(self, start: int, end: int) -> bytes:
        """Return what makes a block's numbers besides its tokens and what is before it."""
        images = name_images(self.images, start, end) if start < self.images_end else b""
        begins = bool(self.adapter) and start <= self.lora_start < end
        return images + name_adapter(self.adapter, self.lora_start - start) if begins else images

    def advance(self, end: int, *, samples: bool, num_drafts: int = 0) -> None:
        """A batch with its tokens up to `end` goes to the ranks, and so many drafts behind them."""
        self.num_computed_tokens = end
        self.num_draft_tokens = num_drafts
        self.num_promised_tokens += samples

    def keep_promise(self, token_id: int) -> None:
        """A batch has come and brought this token."""
        self.num_promised_tokens -= 1
        self.output_token_ids.append(token_id)

    def keep_run(self, token_ids: Sequence[int], num_right: int) -> None:
        """A batch has brought these: what it sampled, what came after so many right drafts, and what is forced behind.

        The pass has computed the right drafts; of the others the next batches compute all in one go.
        """
        self.num_promised_tokens -= 1
        assert not self.num_promised_tokens, "a batch under way would be at another place"
        self.output_token_ids += token_ids
        self.num_computed_tokens += num_right

    def take_prediction_counts(self) -> tuple[int, int]:
        """Return how many predicted tokens were right and wrong since this was asked last."""
        counts = self.num_accepted_prediction_tokens, self.num_rejected_prediction_tokens
        self.num_accepted_prediction_tokens = self.num_rejected_prediction_tokens = 0
        return counts

    def take_draft_counts(self) -> tuple[int, int]:
        """Return how many tokens of drafts were scored, and how many of these taken, since this was asked last."""
        counts = self.num_scored_draft_tokens, self.num_accepted_draft_tokens
        self.num_scored_draft_tokens = self.num_accepted_draft_tokens = 0
        return counts

    def start_over(self) -> None:
        """Nothing of it is in the cache, and nothing is promised."""
        self.num_computed_tokens = self.num_promised_tokens = 0

    def gets_more(self, max_model_len: int) -> bool:
        """Return whether a token may follow those there are; not how long it goes on if a token stops it."""
        return self.num_left(max_model_len) > 0

    def num_left(self, max_model_len: int) -> int:
        """Return how many tokens may follow those there are, if none stops it."""
        num_outputs = len(self.output_token_ids) + self.num_promised_tokens
        return min(self.sampling.max_tokens - num_outputs, max_model_len - self.num_prompt_tokens - num_outputs)

    def cut(self, token_ids: Sequence[int], max_model_len: int) -> tuple[int, str | None]:
        """Return how many of these tokens follow the output, up to one that completes the request, and why it does."""
        sampling, num_outputs = self.sampling, len(self.output_token_ids)
        ends = () if sampling.grammar is None else sampling.grammar.end_token_ids
        most = min(sampling.max_tokens, max_model_len - self.num_prompt_tokens)
        for count, token_id in enumerate(token_ids, 1):
            may_stop = num_outputs + count > sampling.min_tokens
            if token_id in ends or (may_stop and token_id in sampling.stop_token_ids):
                return count, "stop"
            if num_outputs + count >= most:
                return count, "length"
        return len(token_ids), None

    def finish_reason(self, max_model_len: int) -> str | None:
        """Return why the request is complete after its last output token, or None."""
        sampling, outputs = self.sampling, self.output_token_ids
        num_outputs = len(outputs)
        if sampling.grammar is not None and outputs[-1] in sampling.grammar.end_token_ids:
            return "stop"
        if num_outputs > sampling.min_tokens and outputs[-1] in sampling.stop_token_ids:
            return "stop"
        if num_outputs >= sampling.max_tokens or self.num_prompt_tokens + num_outputs >= max_model_len:
            return "length"
        return None
