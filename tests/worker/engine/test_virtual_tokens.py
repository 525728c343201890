"""A soft prompt's vectors take places in front of a prompt, and nobody hears of them."""

from __future__ import annotations

import msgspec
import pytest

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.engine.virtual_tokens import behind_virtual_tokens, why_too_long

SOFT = AdapterInfo("soft", 0, 1024, num_virtual_tokens=6)


@pytest.fixture
def engine():
    report = make_report(num_gpu_blocks=20, block_size=4, max_model_len=16)
    slots = AdapterSlots(1)
    slots.add(SOFT)
    settings = EngineSettings(model="m", max_num_seqs=4, max_num_batched_tokens=64, enable_prefix_caching=True)
    return build_engine(settings, report, (20, 0), FakeExecutor(report), clock=ManualClock(), adapters=slots)


def ask(engine, prompt, adapter, **sampling):
    message = msgspec.structs.replace(make_add("r", prompt, **sampling), adapter=adapter)
    if why := engine.add(message):
        return why
    told = []
    while (outputs := engine.step()) is not None:
        told += outputs.outputs
    return told


def test_ids_in_front_are_of_the_prompt_itself():
    assert behind_virtual_tokens([7, 8], 3) == [7, 7, 7, 7, 8]
    assert behind_virtual_tokens([7, 8], 0) == [7, 8]


def test_they_count_against_the_models_length(engine):
    told = ask(engine, range(8), "soft", max_tokens=50)
    assert sum(len(each.token_ids) for each in told) == 2
    assert told[-1].finish_reason == "length"
    assert ask(engine, range(10), "soft") == (
        "prompt has 10 tokens behind 6 of its soft prompt; with one token of output the limit is 16"
    )
    assert ask(engine, range(16), "") == "prompt has 16 tokens; with one token of output the limit is 16"


def test_what_another_worker_generated_counts_too():
    message = msgspec.structs.replace(make_add("r", range(5)), output_token_ids=[1, 2])
    assert why_too_long(message, 3, 11) is None
    assert "prompt has 7 tokens behind 3 of its soft prompt" in (why_too_long(message, 3, 10) or "")


def test_cached_tokens_are_the_prompts_own_and_the_adapters_own(engine):
    counts = [ask(engine, range(8), adapter, max_tokens=1)[0].cached_tokens for adapter in ("soft", "", "soft", "")]
    assert counts == [0, 0, 12 - 6, 4]
    assert ask(engine, [0, 99], "soft", max_tokens=1)[0].cached_tokens == 0  # of its six vectors four are cached
