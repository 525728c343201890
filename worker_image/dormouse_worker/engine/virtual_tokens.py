"""Tokens in front of a prompt that are no tokens: a soft prompt's vectors stand in their place. Pure.

Each has the id of the prompt's first token, so that what looks at the ids of a prompt, as a repetition penalty does,
finds none that the prompt does not have.
"""

from __future__ import annotations

from dormouse_worker.common.ipc import AddRequest


def why_too_long(message: AddRequest, num_virtual_tokens: int, limit: int) -> str | None:
    """Return why a request is too long for the model, whose `limit` in tokens counts virtual ones; None = it is not."""
    num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
    if num_virtual_tokens + num_tokens < limit:
        return None
    virtual = f" behind {num_virtual_tokens} of its soft prompt" if num_virtual_tokens else ""
    return f"prompt has {num_tokens} tokens{virtual}; with one token of output the limit is {limit}"


def behind_virtual_tokens(prompt_token_ids: list[int], num_virtual_tokens: int) -> list[int]:
    """Return a prompt, of at least one token, with so many in front."""
    return prompt_token_ids[:1] * num_virtual_tokens + prompt_token_ids if num_virtual_tokens else prompt_token_ids
