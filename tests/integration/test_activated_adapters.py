"""An activated LoRA on a real worker: the base's cached prefix serves it, and it is peft's after every sleep."""

from __future__ import annotations

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.conftest import EPOCH, PATIENCE_S
from tests.integration.test_adapter_faults import LOADED, LORA, MAX_TOKENS, state, until, want
from tests.peft_kit import greedy_tokens, make_adapter

pytestmark = pytest.mark.timeout(300)

INVOCATION, BLOCK_SIZE, BEGIN = [301, 302], 8, 21
PROMPT = [*range(40, 40 + BEGIN), *INVOCATION, 7, 9]
SHARED = BEGIN // BLOCK_SIZE * BLOCK_SIZE


@pytest.fixture(scope="module")
def adapter(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "check"
    return make_adapter(folder, tiny_model, rank=8, alora_invocation_tokens=INVOCATION)


@pytest.fixture(scope="module")
def worker(start_worker, tiny_model, adapter):
    worker = start_worker(tiny_model, *LORA, "--block-size", str(BLOCK_SIZE))
    worker.start()
    want(worker, "check", source=f"file://{adapter}")
    return worker


def ask(worker, model, prompt=PROMPT):
    """Return what is said, and how many tokens of the prompt were cached."""
    params = pb.SamplingParams(max_tokens=MAX_TOKENS, temperature=0)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params, model=model)
    *_, last = messages = list(worker.inference.Generate(request, timeout=PATIENCE_S))
    return [token for message in messages for token in message.token_ids], last.usage.cached_tokens


def test_it_shares_the_bases_prefix_and_says_what_peft_says_after_every_sleep(worker, tiny_model, adapter):
    base, activated = (greedy_tokens(tiny_model, path, PROMPT, MAX_TOKENS) for path in (None, adapter))
    assert base != activated
    for level in (0, 1, 2, 3):
        if level:
            worker.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=level))
            worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
        if level == 3:
            worker.start()
        until(lambda: state(worker) == LOADED, "the adapter is not loaded again")
        worker.operate("ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
        assert ask(worker, "tiny") == (base, 0)
        assert ask(worker, "check") == (activated, SHARED)
        assert ask(worker, "tiny")[0] == base


def test_a_prompt_without_its_invocation_is_the_bases(worker):
    prompt = PROMPT[:BEGIN]
    assert ask(worker, "check", prompt)[0] == ask(worker, "tiny", prompt)[0]
