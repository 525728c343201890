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
from tests.worker.engine.engine_kit import expected, finish

SOFT = AdapterInfo("soft", 0, 1024, num_virtual_tokens=6)
KEYS = AdapterInfo("keys", 0, 1024, num_virtual_tokens=6, has_keys=True)


class Rig:
    """An engine that knows the adapters, over a fake that computes from what is in its cache."""

    def __init__(self, *, num_blocks=20, host_blocks=0, max_model_len=16):
        report = make_report(num_gpu_blocks=num_blocks, block_size=4, max_model_len=max_model_len)
        slots = AdapterSlots(2)
        for each in (SOFT, KEYS):
            slots.add(each)
        self.executor = FakeExecutor(report)
        settings = EngineSettings(model="m", max_num_seqs=4, max_num_batched_tokens=8, enable_prefix_caching=True)
        counts, clock = (num_blocks, host_blocks), ManualClock()
        self.engine = build_engine(settings, report, counts, self.executor, clock=clock, adapters=slots)

    def add(self, name, prompt, adapter, **sampling):
        return self.engine.add(msgspec.structs.replace(make_add(name, prompt, **sampling), adapter=adapter))


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def engine(rig):
    return rig.engine


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
    order = ("soft", "", "keys", "soft", "")
    counts = [ask(engine, range(8), adapter, max_tokens=1)[0].cached_tokens for adapter in order]
    assert counts == [0, 0, 0, 12 - 6, 4]
    assert ask(engine, [0, 99], "soft", max_tokens=1)[0].cached_tokens == 0  # of its six vectors four are cached


def test_keys_and_values_that_an_adapter_brings_are_computed_by_no_pass(rig):
    ask(rig.engine, range(8), "keys", max_tokens=1)
    (batch,) = rig.executor.batches
    assert (batch.sequences[0].start, batch.sequences[0].end) == (6, 14)
    assert (batch.new[0].num_given_tokens, batch.new[0].num_virtual_tokens) == (6, 0)
    assert ask(rig.engine, range(8), "keys", max_tokens=1)[0].cached_tokens == 12 - 6
    assert rig.executor.batches[-1].sequences[0].start == 12
    assert ask(rig.engine, [0, 99], "keys", max_tokens=1)[0].cached_tokens == 0
    assert rig.executor.batches[-1].sequences[0].start == 6  # behind what is brought, of which four were cached


@pytest.mark.parametrize("host_blocks", [0, 20])
def test_after_a_preemption_they_are_brought_again_or_come_back(host_blocks):
    rig = Rig(num_blocks=9, host_blocks=host_blocks, max_model_len=32)
    names = ["soft", "keys", "keys"]
    for number, adapter in enumerate(names):
        assert rig.add(f"{number}", [number, 1, 2], adapter, max_tokens=12) is None
    told = finish(rig.engine, {f"{number}": [] for number in range(len(names))})
    assert told == {f"{number}": expected([number] * 7 + [1, 2], 12) for number in range(len(names))}
    assert rig.engine._scheduler.counters.preemptions > 0
