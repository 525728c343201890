"""What a request's sampling looks at: the logits alone, tokens before, masks. Decides who must wait for the host."""

from __future__ import annotations

from dormouse_worker.common.ipc import Sampling


def has_edits(sampling: Sampling, position: int) -> bool:
    """Return whether anything but the logits themselves says how likely a token is at this output position."""
    return (
        sampling.grammar is not None
        or _has_masks(sampling)
        or has_penalties(sampling)
        or position < sampling.min_tokens
    )


def is_plain(sampling: Sampling) -> bool:
    """Return whether nothing but temperature, filters and penalties is asked for, at any position.

    A grammar's mask is laid over the logits before: what is asked for does not change by it.
    """
    return sampling.logprobs is None and not _has_masks(sampling) and sampling.min_tokens == 0


def has_penalties(sampling: Sampling) -> bool:
    """Return whether tokens that a sequence has already become less or more likely."""
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)


def takes_likeliest(sampling: Sampling) -> bool:
    """Return whether every token is the likeliest one by the logits as they are, and that is all that is asked."""
    return sampling.temperature == 0 and needs_logits_only(sampling)


def needs_logits_only(sampling: Sampling) -> bool:
    """Return whether the logits as they are decide, by temperature and filters, whatever the tokens before are."""
    return is_plain(sampling) and not has_penalties(sampling) and sampling.grammar is None


def takes_forced(sampling: Sampling) -> bool:
    """Return whether a token that its grammar forces is what it would sample, and nothing else is told of it."""
    is_alone = not sampling.allowed_token_ids and not sampling.bad_words_token_ids
    return sampling.grammar is not None and sampling.logprobs is None and is_alone


def _has_masks(sampling: Sampling) -> bool:
    return bool(sampling.allowed_token_ids or sampling.bad_words_token_ids or sampling.logit_bias)
