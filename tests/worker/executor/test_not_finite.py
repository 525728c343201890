"""A model whose numbers are not finite: its requests end with the reason, and a worker that has no others fails.

On real workers, whose weights are damaged after they were read, and on every way from logits to tokens.
"""

from __future__ import annotations

import pytest
import torch

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import State
from tests.worker.executor.sleeping_rank import PROMPTS, SleepingRank

NAN, INFINITY = float("nan"), float("inf")
WAYS = {
    "the fastest": ("cpu", {}),
    "torch": ("cpu", {"attention_backend": "sdpa"}),
    "transformers": ("cpu", {"model_impl": "transformers"}),
    "tokens promised": ("own memory", {}),
    "a cache of 8 bits": ("cpu", {"kv_cache_dtype": "int8"}),
    "one in torch": ("cpu", {"kv_cache_dtype": "fp8", "attention_backend": "sdpa"}),
}
CHOICES = {
    "greedy": {},
    "random": {"temperature": 0.7, "seed": 3},
    "filtered": {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "allowed tokens": {"allowed_token_ids": (3, 4)},
    "a biased one": {"logit_bias": {3: 100.0}, "temperature": 1.0},
    "log-probabilities": {"logprobs": 2},
    "of the prompt": {"prompt_logprobs": 1},
}
QUANTIZED = {
    "8 bits": ("cpu", {"quantization": "int8"}),
    "8 bits in torch": ("cpu", {"quantization": "int8", "attention_backend": "sdpa"}),
}
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj", "embed_tokens", "lm_head")


@pytest.fixture
def rank(request, tiny_model):
    """Return a rank of this way that serves; what is in its weights is the test's to change."""
    worker, settings = {**WAYS, **QUANTIZED}[request.param]
    rank = SleepingRank(tiny_model, worker, keeps=False, **settings)
    yield rank
    rank.close()


each_way = pytest.mark.parametrize("rank", WAYS, indirect=True)
each_quantized_way = pytest.mark.parametrize("rank", QUANTIZED, indirect=True)


def damage(rank, part):
    """Write one NaN into every tensor of this name; of the embedding into the row of one token."""
    for name, tensor in rank.module.named_parameters():
        if part in name:
            row = PROMPTS[0][-1] if part == "embed_tokens" else len(tensor) // 2
            tensor.data[row, 3] = NAN


def check_that_it_ends(rank, **sampling):
    why = rank.refusal(PROMPTS[0], **sampling)
    assert why.startswith("the model's logits are not finite"), why


@each_way
@pytest.mark.parametrize("part", PARTS)
def test_wherever_it_comes_from_the_request_ends_with_the_reason(rank, part):
    damage(rank, part)
    check_that_it_ends(rank)
    assert rank.is_ready


@each_way
def test_an_infinite_row_of_the_head_is_found_too(rank):
    rank.module.lm_head.weight.data[7] = INFINITY  # both signs meet
    check_that_it_ends(rank)


@each_way
@pytest.mark.parametrize("choice", CHOICES)
def test_however_tokens_are_chosen(rank, choice):
    damage(rank, "lm_head")
    check_that_it_ends(rank, **CHOICES[choice])


@each_way
def test_two_passes_in_a_row_fail_the_worker_with_the_reason(rank):
    damage(rank, "down_proj")
    check_that_it_ends(rank)
    assert rank.is_ready
    check_that_it_ends(rank)
    assert rank.status.state is State.FAILED
    assert rank.status.failure_reason == "LogitsNotFinite"
    assert rank.status.failure_message.startswith("2 forward passes in a row: the model's logits are not finite")


@each_way
def test_a_good_pass_between_shows_that_the_model_computes(rank):
    damage(rank, "embed_tokens")  # the row of one token
    for _ in range(3):
        check_that_it_ends(rank)
        assert rank.ask(PROMPTS[1])[0]
    assert rank.is_ready


@each_way
def test_a_prompt_that_is_too_much_for_a_sound_model_takes_nobodys_worker_away(rank):
    damage(rank, "embed_tokens")  # the row of one token, which no golden token is
    for _ in range(5):
        check_that_it_ends(rank)
    assert rank.is_ready
    assert rank.check_answer(1) == 0


@each_way
def test_who_shares_the_batch_is_served_on(rank):
    truth = rank.truths[1][0]
    damage(rank, "embed_tokens")
    outcome = rank.ask_together({"odd": PROMPTS[0], "sound": PROMPTS[1]})
    assert outcome.failed.keys() == {"odd"}
    assert [token for token, _ in outcome.said["sound"]] == [token for token, _ in truth]
    assert rank.is_ready


@each_way
def test_what_it_computed_is_no_known_prefix(rank):
    damage(rank, "embed_tokens")
    check_that_it_ends(rank)
    with torch.no_grad():
        embedding = next(t for name, t in rank.module.named_parameters() if "embed_tokens" in name)
        embedding[PROMPTS[0][-1]] = 0.25
    assert rank.ask(PROMPTS[0])[1] == 0


@each_quantized_way
@pytest.mark.parametrize("odd", [NAN, INFINITY])
@pytest.mark.parametrize("part", ["input_layernorm", "post_attention_layernorm", "model.norm", "q_proj.weight_scale"])
def test_an_activation_that_rounding_to_8_bits_meets_is_found(rank, part, odd):
    for name, tensor in rank.module.named_parameters():
        if part in name:
            tensor.data[3] = odd
    check_that_it_ends(rank)
    assert rank.is_ready


@each_quantized_way
@pytest.mark.parametrize("odd", [NAN, INFINITY])
def test_a_row_that_is_rounded_to_8_bits_spoils_no_other_of_its_batch(rank, odd):
    truth = rank.truths[1][0]
    rank.module.model.embed_tokens.weight.data[PROMPTS[0][-1], 3] = odd
    outcome = rank.ask_together({"odd": PROMPTS[0], "sound": PROMPTS[1]})
    assert outcome.failed["odd"].startswith("the model's logits are not finite")
    assert [token for token, _ in outcome.said["sound"]] == [token for token, _ in truth]
    assert rank.is_ready


@pytest.mark.parametrize("worker", ["cpu", "own memory"])
def test_a_model_that_says_no_numbers_from_the_start_never_serves(tiny_model, worker):
    rank = SleepingRank(tiny_model, worker, keeps=False, starts=False)
    damage(rank, "down_proj")
    assert rank.command(InitializeCache(40)) == "LogitsNotFinite"
    assert (rank.status.state, rank.status.failure_reason) == (State.FAILED, "LogitsNotFinite")
    rank.close()
