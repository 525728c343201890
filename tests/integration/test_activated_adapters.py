"""Adapters that are no plain LoRA on a real worker: peft's after every sleep; prefixes are whose they should be."""

from __future__ import annotations

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.conftest import EPOCH, PATIENCE_S
from tests.integration.test_adapter_faults import LOADED, LORA, MAX_TOKENS
from tests.peft_kit import LOUD, greedy_tokens, make_adapter, make_soft_prompt
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

INVOCATION, BLOCK_SIZE, BEGIN = [301, 302], 8, 21
PROMPTS = [[*range(40, 40 + BEGIN), *INVOCATION, 7, last] for last in range(9, 60)]
SHARED = BEGIN // BLOCK_SIZE * BLOCK_SIZE
SOFT = {"tuned": "PROMPT_TUNING", "keys": "PREFIX_TUNING"}
NUM_VIRTUAL = 6


@pytest.fixture(scope="module")
def adapters(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    soft = {
        name: make_soft_prompt(folder / name, tiny_model, kind=kind, num_tokens=NUM_VIRTUAL, loudness=3.0)
        for name, kind in SOFT.items()
    }
    return {
        "check": make_adapter(folder / "check", tiny_model, rank=8, loudness=LOUD, alora_invocation_tokens=INVOCATION),
        **soft,
    }


@pytest.fixture(scope="module")
def worker(start_worker, tiny_model, adapters):
    worker = start_worker(tiny_model, *LORA, "--max-cpu-loras", "3", "--block-size", str(BLOCK_SIZE))
    worker.start()
    told = [control.LoraSpec(name=name, uri=f"file://{path}") for name, path in adapters.items()]
    worker.operate("SetLoras", control.SetLorasRequest(epoch=EPOCH, adapters=told, digest="all"))
    wait_for(lambda: are_loaded(worker), "the adapters are not loaded")
    return worker


def are_loaded(worker):
    told = worker.operate("ListLoras", control.ListLorasRequest()).adapters
    return [each.state for each in told] == [LOADED] * 3


@pytest.fixture(scope="module")
def said(tiny_model, adapters):
    """Return the first prompt that tells all four apart, and their answers: a training decides which one it is."""
    for prompt in PROMPTS:
        answers = [greedy_tokens(tiny_model, path, prompt, MAX_TOKENS) for path in (None, *adapters.values())]
        if len(set(map(tuple, answers))) == len(answers):
            return prompt, answers
    raise AssertionError("no prompt tells them apart")


def ask(worker, model, prompt):
    """Return what is said, and how many tokens of the prompt were cached."""
    params = pb.SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params, model=model)
    *_, last = messages = list(worker.inference.Generate(request, timeout=PATIENCE_S))
    assert last.usage.prompt_tokens == len(prompt)
    return [token for message in messages for token in message.token_ids], last.usage.cached_tokens


def test_all_say_what_peft_says_after_every_sleep_and_what_is_activated_shares_the_bases_prefix(worker, said):
    prompt, (base, activated, *soft) = said
    for level in (0, 1, 2, 3):
        if level:
            worker.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=level))
            worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
        if level == 3:
            worker.start()
        wait_for(lambda: are_loaded(worker), "the adapters are not loaded again")
        worker.operate("ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
        assert ask(worker, "tiny", prompt) == (base, 0)
        assert ask(worker, "check", prompt) == (activated, SHARED)
        assert ask(worker, "tiny", prompt)[0] == base
        for known in (0, 24 - NUM_VIRTUAL):
            assert [ask(worker, name, prompt) for name in SOFT] == [(each, known) for each in soft]


def test_it_is_told_of_which_kind_each_is(worker):
    told = {each.name: each for each in worker.operate("ListLoras", control.ListLorasRequest()).adapters}
    assert [told[name].virtual_tokens for name in SOFT] == [NUM_VIRTUAL] * 2
    assert {told[name].kind for name in SOFT} == {control.LORA_KIND_SOFT_PROMPT}
    assert list(told["check"].invocation_token_ids) == INVOCATION


def test_a_prompt_without_its_invocation_is_the_bases(worker):
    prompt = PROMPTS[0][:BEGIN]
    assert ask(worker, "check", prompt)[0] == ask(worker, "tiny", prompt)[0]
