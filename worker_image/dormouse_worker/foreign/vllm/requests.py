"""Our requests in vLLM's words, and why some cannot be said in them. Pure."""

from __future__ import annotations

from typing import Any

from dormouse_worker.common.ipc import Added, AddRequest, Sampling
from dormouse_worker.foreign.vllm.interface import VllmRequest

_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # an odd number: choices of one seed have different ones


def why_not(message: Added, max_model_len: int) -> str:
    """Return why vLLM is not given a request, "" = it is. The front has refused these; this is the net below."""
    if not isinstance(message, AddRequest):
        return "with runtime vllm the model makes text, and no vectors"
    asked = {
        "resume": message.output_token_ids,
        "adapter": message.adapter,
        "images": message.images,
        "structured_outputs": message.sampling.grammar,
        "logprob_token_ids": message.sampling.logprob_token_ids,  # others of the step would lose their likeliest ones
    }
    for field, value in asked.items():
        if value:
            return f"{field} is set; with runtime vllm it cannot be"
    num_tokens = len(message.prompt_token_ids)
    if not 0 < num_tokens < max_model_len:
        return f"prompt has {num_tokens} tokens; allowed are 1 to {max_model_len - 1}"
    return ""


def to_vllm(message: AddRequest) -> VllmRequest:
    """Return a request that `why_not` has nothing against."""
    sampling = message.sampling
    return VllmRequest(
        message.request_id,
        message.prompt_token_ids,
        params(sampling),
        [list(word) for word in sampling.bad_words_token_ids],
        message.priority,
        message.cache_salt,
    )


def params(sampling: Sampling) -> dict[str, Any]:
    """Return the fields of vLLM's SamplingParams; texts and their ends are the front's affair."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": seed_of(sampling),
        "max_tokens": sampling.max_tokens,
        "min_tokens": min(sampling.min_tokens, sampling.max_tokens),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,  # where an end of the model's own ends the text, it stands in stop_token_ids
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": sampling.logit_bias or None,
        "allowed_token_ids": list(sampling.allowed_token_ids) or None,
        "detokenize": False,
    }


def seed_of(sampling: Sampling) -> int:
    """Return vLLM's seed, below 2^63: one for each choice of a call."""
    return (sampling.seed + sampling.choice_index * _GOLDEN_RATIO) % (1 << 63)
