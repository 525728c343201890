"""Fills what a request leaves open: the model's defaults, a drawn seed, the tokens that end the text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.front.text.model_card import ModelCard


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a request does not say itself: drawn, checked or tokenized for it."""

    max_tokens: int  # already checked against the room that the prompt leaves
    drawn_seed: int
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    grammar: Grammar | None = None


def to_sampling(params: pb.SamplingParams, card: ModelCard, prepared: Prepared) -> Sampling:
    """Return the engine's parameters of the first choice.

    As in vLLM, unset fields take the model's generation_config.json before the API's defaults, and a top_k above the
    vocabulary means all of it.
    """
    defaults = card.defaults
    top_k = params.top_k if params.HasField("top_k") else defaults.top_k
    goes_on = params.ignore_eos and prepared.grammar is None  # where a grammar ends nothing can follow
    end_tokens = () if goes_on else card.eos_token_ids
    has_penalty = params.HasField("repetition_penalty")
    return Sampling(
        temperature=params.temperature if params.HasField("temperature") else defaults.temperature,
        top_p=params.top_p if params.HasField("top_p") else defaults.top_p,
        top_k=min(top_k, card.vocab_size),
        min_p=params.min_p if params.HasField("min_p") else defaults.min_p,
        seed=params.seed if params.HasField("seed") else prepared.drawn_seed,
        max_tokens=prepared.max_tokens,
        min_tokens=params.min_tokens,
        stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *end_tokens))),
        logprobs=params.logprobs if params.HasField("logprobs") or params.logprob_token_ids else None,
        repetition_penalty=params.repetition_penalty if has_penalty else defaults.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        allowed_token_ids=tuple(dict.fromkeys(params.allowed_token_ids)),
        bad_words_token_ids=prepared.bad_words_token_ids,
        prompt_logprobs=params.prompt_logprobs if params.HasField("prompt_logprobs") else None,
        grammar=prepared.grammar,
        logprob_token_ids=tuple(params.logprob_token_ids),
    )


def resumed_choice(first: Sampling, resume: pb.Resume) -> Sampling:
    """Return the parameters of the choice that is resumed: its random numbers are its own.

    The prompt's log-probabilities came with the first choice, before its first token.
    """
    is_untouched = resume.choice_index == 0 and not resume.output_token_ids
    asked = first.prompt_logprobs if is_untouched else None
    return msgspec.structs.replace(first, choice_index=resume.choice_index, prompt_logprobs=asked)


def choices(first: Sampling, num_choices: int) -> list[Sampling]:
    """Return the parameters of every choice; only the first asks for the log-probabilities of their common prompt."""
    others = (
        msgspec.structs.replace(first, choice_index=index, prompt_logprobs=None) for index in range(1, num_choices)
    )
    return [first, *others]
