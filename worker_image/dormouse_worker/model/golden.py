"""The golden tokens: what a model says to a fixed prompt at its first start, and must say again after every wake.

At the first start the tokens are generated one by one, as for a user. Then prompt and tokens go through one forward
pass of their own, and what the model says at each of its rows is recorded. After a wake that pass alone is repeated:
one pass proves the weights, and its shape is the recorded one, so that every bit must be the same.

In a group of ranks nothing is generated, as a token would have to travel: the prompt is longer instead. All ranks
compute the pass, the one that samples records and compares it, and the others have no rows.

Where an encoder reads the prompts, the fixed one is a source and what every answer begins with. Rows of the source say
what the head makes of the encoder's states, so that the encoder is proved too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dormouse_worker.common.errors import GoldenTokensDiffer, LogitsNotFinite
from dormouse_worker.common.ipc import Sampling, TokenLogprobs
from dormouse_worker.common.sides import Sides, joined
from dormouse_worker.engine.batch import Batch, BlockIds, ModelOutput, NewSequence, single

NUM_PROMPT_TOKENS = 8
NUM_TOKENS = 16
_NAME = "golden"
_GREEDY = Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=0, max_tokens=NUM_TOKENS)
_ALL_ROWS = Sampling(
    temperature=0, top_p=1, top_k=0, min_p=0, seed=0, max_tokens=1, logprobs=1, prompt_logprobs=1
)  # of each row the log-probability of the token that follows, and the likeliest one

Execute = Callable[[Batch], ModelOutput]


@dataclass(frozen=True, slots=True)
class GoldenTokens:
    """The one pass and what it gave."""

    token_ids: tuple[int, ...]  # prompt and generated tokens; 24 unless the model length is shorter
    block_ids: BlockIds  # the tables of the layer groups follow each other
    rows: tuple[TokenLogprobs, ...]  # one for each token; none where another rank samples
    num_source: int = 0  # of the tokens, the first that an encoder reads

    @property
    def num_blocks(self) -> int:
        """Return how many blocks, the first ones of the cache, the pass writes to."""
        return sum(len(blocks) for blocks in self.block_ids)


def record_golden(
    execute: Execute,
    *,
    vocab_size: int,
    max_model_len: int,
    block_size: int,
    num_groups: int = 1,
    generates: bool = True,
    sides: Sides | None = None,
) -> GoldenTokens:
    """Generate greedily, alone, in the first blocks of an otherwise unused cache; then record the one pass.

    Where nothing is generated, the prompt has as many tokens as both would have. Raises LogitsNotFinite.
    """
    num_prompt = max(1, min(NUM_PROMPT_TOKENS, max_model_len - NUM_TOKENS))
    num_tokens, num_source = min(max_model_len, num_prompt + NUM_TOKENS), 0
    known = [(7 * i + 3) % vocab_size for i in range(num_prompt if generates else num_tokens)]
    if sides is not None:
        num_source = min(num_prompt, sides.max_source_tokens)
        known = joined(known[:num_source], sides.opening, block_size)
        num_output = min(NUM_TOKENS, sides.max_target_tokens - len(sides.opening), max_model_len - len(known))
        num_tokens = len(known) + num_output
    width = -(-num_tokens // block_size)
    block_ids = tuple(list(range(group * width, (group + 1) * width)) for group in range(num_groups))
    start = 0
    while len(known) < num_tokens:
        (sampled,) = _execute(execute, known, _GREEDY, block_ids, start=start, num_source=num_source).sampled
        start = len(known)
        known.append(sampled.token_id)
    rows = _one_pass(execute, known, block_ids, num_source)
    return GoldenTokens(tuple(known), block_ids, rows, num_source)


def repeat_golden(execute: Execute, recorded: GoldenTokens) -> tuple[TokenLogprobs, ...]:
    """Repeat the one pass; return its rows. Overwrites the first `recorded.num_blocks` blocks of the cache.

    Raises LogitsNotFinite.
    """
    return _one_pass(execute, list(recorded.token_ids), recorded.block_ids, recorded.num_source)


def compare_golden(recorded: GoldenTokens, rows: Sequence[TokenLogprobs]) -> None:
    """Raise GoldenTokensDiffer at the first row that is not the recorded one, bit for bit."""
    for number, (before, now) in enumerate(zip(recorded.rows, rows, strict=True)):
        if before.top_ids != now.top_ids:
            raise GoldenTokensDiffer(
                f"the likeliest token after {number + 1} golden tokens was {before.top_ids[0]} at the first start, now "
                f"it is {now.top_ids[0]}; the model's files changed or its memory is damaged: restart the worker"
            )
        if _bits(before) != _bits(now):
            raise GoldenTokensDiffer(
                f"the log-probability after {number + 1} golden tokens moved from {before.sampled!r} to "
                f"{now.sampled!r}; the same pass on the same weights gives the same bits: restart the worker"
            )


def facts_of(recorded: GoldenTokens) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """Return what the model said, to the bit: other weights, and another arithmetic, say something else."""
    return recorded.token_ids, tuple(_bits(row) for row in recorded.rows)


def _one_pass(
    execute: Execute, token_ids: list[int], block_ids: BlockIds, num_source: int = 0
) -> tuple[TokenLogprobs, ...]:
    output = _execute(execute, token_ids, _ALL_ROWS, block_ids, num_source=num_source)
    if output.not_finite:
        raise LogitsNotFinite(
            "the model's logits after its golden tokens are not finite: its weights are damaged, or its numbers grow "
            "too large for its dtype: copy the model again, or choose a dtype with a wider range (bfloat16, float32)"
        )
    last = [token.logprobs for token in output.sampled if token.logprobs is not None]
    return (*output.prompt_logprobs.get(_NAME, []), *last)


def _execute(
    execute: Execute,
    token_ids: list[int],
    sampling: Sampling,
    block_ids: BlockIds,
    *,
    start: int = 0,
    num_source: int = 0,
) -> ModelOutput:
    new = NewSequence(_NAME, token_ids, [], sampling, num_source_tokens=num_source)
    return execute(single(new, block_ids, start=start))


def _bits(row: TokenLogprobs) -> bytes:
    """Return what must be the same; unlike a number, a NaN equals itself."""
    return struct.pack(f"<{1 + len(row.top_logprobs)}d", row.sampled, *row.top_logprobs)
