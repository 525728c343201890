"""Where an activated LoRA begins in a prompt."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.invocation import BASE, Activation, activate, last_place
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor

PLAIN, ACTIVATED = AdapterInfo("plain", 8, 1024), AdapterInfo("activated", 8, 1024, invocation=(7, 8))


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2), min_size=1, max_size=3))
def test_the_last_place_is_the_last_of_all_places(token_ids, wanted):
    places = [start for start in range(len(token_ids)) if token_ids[start : start + len(wanted)] == wanted]
    assert last_place(token_ids, tuple(wanted)) == (places[-1] if places else None)


def test_a_plain_adapter_begins_with_the_prompt_and_an_activated_one_with_its_invocation():
    assert activate(PLAIN, [1, 7, 8]) == Activation("plain", 0)
    assert activate(ACTIVATED, [1, 7, 8, 7, 8, 2]) == Activation("activated", 3)
    assert activate(ACTIVATED, [7, 8, 1, 8]) == Activation("activated", 0)
    assert activate(ACTIVATED, [1, 7]) == BASE


class Engine:
    """An engine over a fake executor with both adapters; blocks hold four tokens."""

    def __init__(self):
        report = make_report(num_gpu_blocks=32, block_size=4, max_model_len=64)
        self.executor, slots = FakeExecutor(report), AdapterSlots(1)
        slots.note({info.digest: info for info in (PLAIN, ACTIVATED)}, {})
        settings = EngineSettings(model="m", max_num_batched_tokens=64, enable_prefix_caching=True)
        self.engine = build_engine(settings, report, (32, 0), self.executor, clock=ManualClock(), adapters=slots)

    def ask(self, name, adapter, prompt, **fields):
        """Return what the ranks are told of a request, and how many of its tokens were cached."""
        message = msgspec.structs.replace(make_add(name, prompt, max_tokens=4), adapter=adapter, **fields)
        assert self.engine.add(message) is None
        self.engine.step()
        batch, cached = self.executor.batches[-1], self.engine._scheduler.request(name).num_cached_tokens
        while self.engine.has_work:
            self.engine.step()
        self.engine.check_integrity()
        ((new),) = batch.new
        return new.lora_slot, new.lora_start, cached


CHAT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]


def test_a_prefix_of_the_base_serves_what_is_before_the_invocation():
    engine = Engine()
    assert engine.ask("base", "", CHAT) == (-1, 0, 0)
    assert engine.ask("activated", "activated", CHAT) == (0, 6, 4)
    assert engine.ask("again", "activated", CHAT) == (0, 6, 8)
    assert engine.ask("plain", "plain", CHAT) == (0, 0, 0)
    assert engine.ask("base again", "", CHAT) == (-1, 0, 8)


def test_a_later_invocation_takes_nothing_that_the_adapter_computed_before():
    engine = Engine()
    engine.ask("first", "activated", CHAT)
    assert engine.ask("second", "activated", [*CHAT, 7, 8, 2]) == (0, 10, 4)
    assert engine.ask("base", "", [*CHAT, 7, 8, 2]) == (-1, 0, 8)


def test_a_prompt_without_its_invocation_is_the_bases_also_where_the_answer_has_it():
    engine = Engine()
    assert engine.ask("one", "activated", [1, 2, 3, 4, 5]) == (-1, 0, 0)
    assert engine.ask("two", "activated", [1, 2, 3, 4, 5], output_token_ids=[7, 8]) == (-1, 0, 4)


def test_who_goes_on_elsewhere_has_the_place_that_its_prompt_says():
    assert Engine().ask("one", "activated", CHAT, output_token_ids=[7, 8]) == (0, 6, 0)
