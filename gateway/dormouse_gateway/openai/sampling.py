"""From the parameters that a checked body shares with others to `SamplingParams`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.structured import constrain

_AS_THEY_ARE = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)
_WHOLE_NUMBERS = ("seed", "n", "max_tokens", "min_tokens", "prompt_logprobs")
_LISTS_OF_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")


def begin(body: Mapping[str, Any], request_id: str) -> pb.GenerateRequest:
    """Return the request without its prompt. Raises ApiError."""
    request = pb.GenerateRequest(model=body["model"], request_id=request_id, priority=int(body.get("priority", 0)))
    fill(request.sampling_params, body)
    return request


def fill(params: pb.SamplingParams, body: Mapping[str, Any]) -> None:
    """Write what the body says. Raises ApiError."""
    for name in _AS_THEY_ARE:
        if name in body:
            setattr(params, name, body[name])
    for name in _WHOLE_NUMBERS:
        if name in body:
            setattr(params, name, int(body[name]))
    for name in _LISTS_OF_IDS:
        getattr(params, name).extend(int(token_id) for token_id in body.get(name, ()))
    params.bad_words.extend(body.get("bad_words", ()))
    if "top_k" in body:
        params.top_k = max(0, int(body["top_k"]))
    stop = body.get("stop", ())
    params.stop.extend([stop] if isinstance(stop, str) else stop)
    for token_id, bias in body.get("logit_bias", {}).items():
        params.logit_bias[int(token_id)] = bias
    constrain(params, body)
