"""Which requests go to the workers for prompts: long prompts, where another worker can go on behind them. Pure."""

from __future__ import annotations

from dormouse_api.images import num_image_bytes
from dormouse_api.names import DECODE, PREFILL
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.policy import Demand

REMOTE_DECODE = pb.GenerateRequest(remote_decode=True).SerializeToString()  # behind a message it sets this field


def role_of(request: object, demand: Demand, *, least_tokens: int, can_hand_over: bool) -> str:
    """Return the role of the workers that shall have the request; prompts of so many tokens go to those for prompts."""
    is_long = demand.prompt_tokens >= least_tokens
    return PREFILL if can_hand_over and is_long and _may_be_split(request) else DECODE


def _may_be_split(request: object) -> bool:
    """Return whether one worker may compute the prompt and another one go on, with nothing computed twice."""
    if not isinstance(request, pb.GenerateRequest):
        return False
    params = request.sampling_params
    is_single = params.n <= 1 and params.max_tokens != 1
    return is_single and not params.HasField("prompt_logprobs") and not num_image_bytes(request.chat)
