"""Greedy generation with masks, bias and penalties, token for token as transformers' `generate` does it."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worker.model.sampler_kit import row, tokens_of

PROMPT = [(i * i * 7 + 3) % 250 for i in range(12)]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model(tiny_model):
    """Return transformers' own tiny qwen3 in float32."""
    return AutoModelForCausalLM.from_pretrained(tiny_model("qwen3"), dtype=torch.float32).eval()


def ours(model, **sampling):
    """Return what the sampler makes of the model's logits, and whether the masks and penalties changed anything."""
    output, changed = [], False
    while len(output) < NUM_TOKENS and not (output and output[-1] in sampling.get("stop_token_ids", ())):
        logits = model(torch.tensor([PROMPT + output])).logits[:, -1]
        token, plain = tokens_of(logits.expand(2, -1), [row(prompt=PROMPT, output=output, **sampling), row()])
        changed |= token != plain
        output = [*output, token]
    return output, changed


def theirs(model, **options):
    ids = torch.tensor([PROMPT])
    options = {"eos_token_id": None, "pad_token_id": 0, "max_new_tokens": NUM_TOKENS, "do_sample": False, **options}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(PROMPT) :].tolist()


@torch.no_grad()
def test_greedy_tokens_are_those_of_transformers_with_every_edit_that_both_know(model):
    plain, _ = ours(model)
    assert plain == theirs(model)
    first, second, third = plain[2], tuple(plain[4:6]), plain[8]
    cases = [
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
        ({"bad_words_token_ids": ((first,), second)}, {"bad_words_ids": [[first], list(second)]}),
        ({"logit_bias": {third: -3.0, 17: 2.0}}, {"sequence_bias": {(third,): -3.0, (17,): 2.0}}),
        ({"stop_token_ids": (first,), "min_tokens": 7}, {"eos_token_id": first, "min_new_tokens": 7}),
        (
            {"allowed_token_ids": tuple(range(0, 260, 2))},
            {"prefix_allowed_tokens_fn": lambda *_: list(range(0, 260, 2))},
        ),
    ]
    every_sampling, every_option = {}, {}
    for sampling, options in cases:
        tokens, changed = ours(model, **sampling)
        assert tokens == theirs(model, **options)
        assert changed
        every_sampling |= sampling
        every_option |= options
    assert ours(model, **every_sampling)[0] == theirs(model, **every_option)
