"""Slots of adapters: who gets one, who waits, who may overtake, and what the ranks are told."""

from __future__ import annotations

import msgspec
import pytest

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import AddLora, ListLoras, PinLora, RemoveLora
from dormouse_worker.common.errors import AdapterLimit, AdapterNotFound
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.adapter_commands import AdapterCommands
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.line import MAX_OVERTAKES
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor


def slots_of(num_slots, *names):
    slots = AdapterSlots(num_slots)
    for name in names:
        slots.add(AdapterInfo(name, 8, 1024))
    return slots


def hold(slots, name):
    slots.begin(name)
    return slots.hold(name)


def end(slots, name):
    slots.release(name)
    slots.end(name)


def test_an_adapter_is_moved_once_and_found_again():
    slots = slots_of(2, "a", "b")
    assert [hold(slots, "a"), hold(slots, "b"), hold(slots, "a"), hold(slots, "")] == [0, 1, 0, -1]
    assert slots.take_moves() == ((0, "a"), (1, "b"))
    assert slots.take_moves() == ()


def test_the_one_that_was_used_longest_ago_leaves_first():
    slots = slots_of(2, "a", "b", "c")
    for name in ("a", "b", "a"):
        hold(slots, name)
        end(slots, name)
    slots.take_moves()
    assert hold(slots, "c") == 1
    assert slots.take_moves() == ((1, "c"),)


def test_what_runs_and_what_is_pinned_keeps_its_slot():
    slots = slots_of(2, "a", "b", "c")
    slots.pin("a", is_pinned=True)
    hold(slots, "a")
    end(slots, "a")
    hold(slots, "b")
    assert not slots.has_room("c")
    assert slots.has_room("a")
    assert slots.has_room("")
    end(slots, "b")
    assert hold(slots, "c") == 1


def test_one_slot_stays_free_of_pins():
    slots = slots_of(2, "a", "b")
    slots.pin("a", is_pinned=True)
    with pytest.raises(AdapterLimit, match="1 adapters are pinned and max_loras is 2"):
        slots.pin("b", is_pinned=True)
    slots.pin("a", is_pinned=False)
    slots.pin("b", is_pinned=True)
    with pytest.raises(AdapterNotFound):
        slots.pin("z", is_pinned=True)


def test_a_removed_adapter_stays_until_nobody_needs_it():
    slots = slots_of(1, "a")
    hold(slots, "a")
    slots.remove("a")
    assert slots.why_not("a") == "the adapter with the digest a is not loaded"
    assert slots.take_unused() == []
    end(slots, "a")
    assert slots.take_unused() == ["a"]
    assert slots.take_unused() == []


def test_after_a_reset_only_what_runs_comes_again():
    slots = slots_of(2, "a", "b")
    hold(slots, "a")
    hold(slots, "b")
    end(slots, "b")
    slots.take_moves()
    slots.reset()
    assert slots.take_moves() == ((0, "a"),)
    assert hold(slots, "b") == 1
    assert slots.take_moves() == ((1, "b"),)


def test_one_that_was_loaded_comes_before_it_is_needed_and_takes_the_slot_of_nobody_who_runs():
    slots = slots_of(2, "a", "b", "c")
    hold(slots, "a")
    slots.take_moves()
    for name in ("b", "c"):  # one at a time
        slots.bring(name)
    assert slots.take_moves() == ((1, "b"),)
    slots.bring("b")
    assert hold(slots, "b") == 1
    slots.bring("c")
    assert slots.take_moves() == ()


def test_what_leaves_before_it_has_come_does_not_come():
    slots = slots_of(2, "a", "b")
    slots.bring("a")
    slots.remove("a")
    assert slots.take_unused() == ["a"]
    assert slots.take_moves() == ()
    slots.bring("b")
    slots.note({}, {"b": "its files are gone"})
    assert slots.take_moves() == ()


def test_an_adapter_that_is_lost_says_why():
    slots = slots_of(1, "a")
    slots.note({}, {"a": "its files are gone"})
    assert slots.why_not("a") == "its files are gone"
    slots.add(AdapterInfo("a", 8, 1024))
    assert slots.why_not("a") == ""


def test_integrity_counts_holders_when_nothing_runs():
    slots = slots_of(1, "a")
    slots.check_integrity(is_idle=True)
    hold(slots, "a")
    slots.check_integrity(is_idle=False)
    with pytest.raises(RuntimeError, match="slots and holders do not fit"):
        slots.check_integrity(is_idle=True)


class Engine:
    """An engine over a fake executor with one slot for the adapters a and b."""

    def __init__(self, seqs=8, num_slots=1):
        report = make_report(num_gpu_blocks=200, max_model_len=128)
        self.executor = FakeExecutor(report)
        settings = EngineSettings(model="m", max_num_seqs=seqs, max_num_batched_tokens=64)
        adapters = slots_of(num_slots, "a", "b")
        self.engine = build_engine(settings, report, (200, 0), self.executor, clock=ManualClock(), adapters=adapters)

    def add(self, name, adapter, max_tokens=4):
        message = msgspec.structs.replace(make_add(name, max_tokens=max_tokens), adapter=adapter)
        return self.engine.add(message)

    def step(self):
        self.engine.step()
        return self.executor.batches[-1].request_ids


def test_who_finds_no_slot_waits_and_others_overtake():
    engine = Engine()
    for name, adapter in (("1", "a"), ("2", "b"), ("3", ""), ("4", "a")):
        assert engine.add(name, adapter) is None
    assert engine.step() == ["3", "1", "4"]
    assert engine.executor.batches[-1].lora_moves == ((0, "a"),)
    assert {new.request_id: new.lora_slot for new in engine.executor.batches[-1].new} == {"1": 0, "3": -1, "4": 0}
    while engine.engine.has_work:
        last = engine.step()
    assert last == ["2"]
    engine.engine.check_integrity()


def test_nobody_is_overtaken_for_ever():
    engine = Engine(seqs=2)
    engine.add("first", "a", max_tokens=2)
    engine.step()
    engine.add("patient", "b", max_tokens=1)
    admitted = 0
    while "patient" not in engine.executor.batches[-1].request_ids:
        engine.add(f"later {admitted}", "a", max_tokens=2)
        engine.step()
        admitted += 1
        assert admitted <= MAX_OVERTAKES + 5
    assert admitted > MAX_OVERTAKES / 2


def test_an_unknown_adapter_is_refused():
    assert Engine().add("1", "z") == "the adapter with the digest z is not loaded"


def test_a_failed_pass_brings_what_runs_its_adapters_again():
    engine = Engine(num_slots=2)
    engine.add("1", "a", max_tokens=3)
    engine.step()
    engine.executor.fail_once["execute_model"] = RuntimeError("boom")
    engine.engine.step()
    engine.add("2", "a")
    engine.step()
    assert [digest for _, digest in engine.executor.batches[-1].lora_moves] == ["a"]


def test_the_fake_keeps_the_adapters_that_it_was_given():
    executor = FakeExecutor()
    given = [executor.add_lora("/a/one"), executor.add_lora("/a/two", "digest")]
    assert [info.digest for info in given] == ["one", "digest"]
    executor.remove_lora("one")
    executor.remove_lora("one")
    assert [*executor.loras] == ["two"]


def test_the_commands_keep_the_ranks_and_the_slots_of_one_mind(caplog):
    executor = FakeExecutor()
    commands = AdapterCommands(executor, 2)
    commands.add(AddLora("/a/one"))
    commands.pin(PinLora("one", is_pinned=True))
    assert repr(commands) == f"AdapterCommands({commands.slots!r})"
    assert '"is_pinned":true' in commands.list(ListLoras())
    commands.add(AddLora("/a/two"))
    commands.remove(RemoveLora("two"))
    assert [*executor.loras] == ["one"]
    executor.lost_loras["one"] = executor.loras.pop("one").digest
    commands.note_wake()
    assert "the adapter one is lost" in caplog.text
