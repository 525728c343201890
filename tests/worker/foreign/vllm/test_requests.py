"""Our requests in vLLM's words."""

from __future__ import annotations

from dormouse_worker.engine.testing import make_add, make_sampling
from dormouse_worker.foreign.vllm.requests import params, seed_of, to_vllm


def test_sampling_keeps_its_names():
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1}
    more = {"presence_penalty": 0.2, "frequency_penalty": 0.3, "logprobs": 2, "prompt_logprobs": 1, "max_tokens": 9}
    assert params(make_sampling(**asked, **more)).items() >= (asked | more).items()


def test_the_ends_of_a_text_are_those_that_the_front_says():
    found = params(make_sampling(stop_token_ids=(2, 7), min_tokens=3))
    assert (found["stop_token_ids"], found["ignore_eos"], found["min_tokens"]) == ([2, 7], True, 3)


def test_what_is_not_asked_for_is_none_and_no_empty_list():
    found = params(make_sampling())
    assert (found["allowed_token_ids"], found["logit_bias"], found["logprobs"]) == (None, None, None)


def test_min_tokens_beyond_the_most_are_the_most():
    assert params(make_sampling(max_tokens=4, min_tokens=9))["min_tokens"] == 4


def test_each_choice_of_a_seed_has_its_own_below_2_to_63():
    seeds = {
        seed_of(make_sampling(seed=seed, choice_index=index)) for seed in (0, 1, (1 << 64) - 1) for index in range(8)
    }
    assert len(seeds) == 24
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_bad_words_salt_and_priority_come_along():
    found = to_vllm(make_add("a", bad_words_token_ids=((1,), (2, 3))))
    assert (found.bad_words_token_ids, found.priority, found.cache_salt) == ([[1], [2, 3]], 0, "")
