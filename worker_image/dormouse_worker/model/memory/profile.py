"""The profile run: the largest batches that the settings allow, on a cache of one block that all sequences share."""

from __future__ import annotations

from msgspec.structs import replace

from dormouse_worker.common.ipc import Sampling
from dormouse_worker.common.sides import Sides, source_room
from dormouse_worker.engine.batch import Batch, NewSequence, ScheduledSequence

_COSTLY = Sampling(  # every branch that works on [N, V]
    temperature=1,
    top_p=0.9,
    top_k=0,
    min_p=0.05,
    seed=0,
    max_tokens=1,
    logprobs=1,
    allowed_token_ids=(0,),
    bad_words_token_ids=((0,),),
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 0.1},
)
LONG_CONTEXT_ROWS = 16


def profile_batches(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    block_size: int,
    num_groups: int = 1,
    takes_soft_prompts: bool = False,
    sides: Sides | None = None,
) -> list[Batch]:
    """Return the batches whose peak counts; every sequence samples with the costliest parameters.

    First as many tokens as allowed over as many sequences as allowed, nearly all of them of one prompt, for attention
    within a prompt costs by its square; then decoding, one token each, at the longest context. Backends bound their
    working memory, so one sequence at full length shows the peak of many. With a soft prompt tokens are embedded apart.
    Where an encoder reads the prompts, the first pass has as many of the longest ones as fit.
    """
    if sides is not None:
        return _two_sided(sides, max_num_seqs, max_num_batched_tokens, max_model_len, block_size)
    num_seqs = min(max_num_seqs, max_num_batched_tokens)
    longest = (max_model_len - 1, 1)
    prefill = [(0, length) for length in _spread(max_num_batched_tokens, num_seqs, max_model_len)]
    rows = min(LONG_CONTEXT_ROWS, max_model_len, max_num_batched_tokens)
    late_chunk = (max_model_len - rows, rows)
    decode = [longest, *[(0, 1)] * (num_seqs - 1)]
    first, *others = [_batch(spans, block_size, num_groups) for spans in (prefill, [late_chunk], decode)]
    return [_with_soft_prompt(first) if takes_soft_prompts else first, *others]


def _two_sided(
    sides: Sides, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, block_size: int
) -> list[Batch]:
    room = source_room(sides.max_source_tokens, block_size)
    num_prompts = max(1, min(max_num_seqs, max_num_batched_tokens // (room + 1)))
    num_first = min(room + 1, max_num_batched_tokens)
    prefill = [(0, num_first)] * num_prompts
    last = room + min(sides.max_target_tokens, max_model_len - room)
    decode = [(last - 1, last)] * min(max_num_seqs, max_num_batched_tokens)
    return [
        _batch([(start, end - start) for start, end in spans], block_size, 1, num_source=sides.max_source_tokens)
        for spans in (prefill, decode)
    ]


def _spread(num_tokens: int, num_seqs: int, max_len: int) -> list[int]:
    """Give each a token, and the rest to the first ones, up to `max_len` each."""
    rest = num_tokens - num_seqs
    lengths = []
    for _ in range(num_seqs):
        more = min(rest, max_len - 1)
        lengths.append(1 + more)
        rest -= more
    return lengths


def _batch(spans: list[tuple[int, int]], block_size: int, num_groups: int, *, num_source: int = 0) -> Batch:
    """Return a batch of sequences that compute `length` tokens from `start` on, all in block 0."""
    ends = [start + length for start, length in spans]
    new = tuple(NewSequence(str(i), [0] * end, [], _COSTLY, num_source_tokens=num_source) for i, end in enumerate(ends))
    tables = [([0] * -(-end // block_size),) * num_groups for end in ends]
    sequences = tuple(
        ScheduledSequence(str(i), start, end, table, samples=True)
        for i, ((start, _), end, table) in enumerate(zip(spans, ends, tables, strict=True))
    )
    return Batch(is_fresh=True, released=(), swap_out=(), swap_in=(), new=new, sequences=sequences)


def without_soft_prompts(batch: Batch) -> Batch:
    """Return the same batch of a model that has none."""
    return replace(batch, new=tuple(replace(each, lora_slot=-1, num_virtual_tokens=0) for each in batch.new))


def sampling_once(batches: list[Batch]) -> list[Batch]:
    """Return the same passes where memory for logits is kept from one to the next: the first alone samples them all."""
    largest, *others = batches
    return [largest, *map(_sampling_first, others)]


def _sampling_first(batch: Batch) -> Batch:
    first, *others = batch.sequences
    return replace(batch, sequences=(first, *(replace(each, samples=False) for each in others)))


def _with_soft_prompt(batch: Batch) -> Batch:
    """Let the first token be a vector of whatever lies in the first slot."""
    first, *others = batch.new
    return replace(batch, new=(replace(first, lora_slot=0, num_virtual_tokens=1), *others))
