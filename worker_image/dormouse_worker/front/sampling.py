"""Fills what a request leaves open: the model's defaults, a drawn seed, the tokens that end the text. Pure."""

from __future__ import annotations

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.model_card import ModelCard
from dormouse_worker.ipc import Sampling


def to_sampling(params: pb.SamplingParams, card: ModelCard, *, max_tokens: int, drawn_seed: int) -> Sampling:
    """Return the engine's parameters; `max_tokens` is already checked against the room that the prompt leaves.

    As in vLLM, unset fields take the model's generation_config.json before the API's defaults, and a top_k above the
    vocabulary means all of it.
    """
    defaults = card.defaults
    top_k = params.top_k if params.HasField("top_k") else defaults.top_k
    end_tokens = () if params.ignore_eos else card.eos_token_ids
    return Sampling(
        temperature=params.temperature if params.HasField("temperature") else defaults.temperature,
        top_p=params.top_p if params.HasField("top_p") else defaults.top_p,
        top_k=min(top_k, card.vocab_size),
        min_p=params.min_p if params.HasField("min_p") else defaults.min_p,
        seed=params.seed if params.HasField("seed") else drawn_seed,
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *end_tokens))),
        logprobs=params.logprobs if params.HasField("logprobs") else None,
    )
