"""Whether a prompt that an encoder reads may be computed: the net below what the front has checked. Pure."""

from __future__ import annotations

from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.sides import source_room


def why_no_source(message: AddRequest, block_size: int, max_num_batched_tokens: int) -> str | None:
    """Return why an encoder cannot read the source, None = it can, or there is none: in one pass, a token behind it."""
    num_source, num_prompt = message.num_source_tokens, len(message.prompt_token_ids)
    if not num_source:
        return None
    room = source_room(num_source, block_size)
    if not 0 < room < num_prompt:
        return (
            f"num_source_tokens is {num_source}, in blocks {room}; allowed: from 1 on, below the prompt's {num_prompt}"
        )
    if room > max_num_batched_tokens:
        return f"the source takes {room} tokens of one pass; the limit is {max_num_batched_tokens}"
    if message.sampling.prompt_logprobs is not None:
        return "prompt_logprobs are not told of prompts that an encoder reads; leave them out"
    return None
