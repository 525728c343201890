"""The memory of adapters: over every sleep, and when files change, are damaged, or are too many."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.errors import AdapterInvalid, AdapterLimit, AdapterNotFound, InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing_adapters import WEIGHTS_FILE, write_adapter


@pytest.fixture
def loaded(tiny_model):
    settings = EngineSettings(model=str(tiny_model("llama")), enable_lora=True, max_loras=2, max_cpu_loras=2)
    model = load(settings, CpuDevice(Host()))
    yield model
    model.close()


@pytest.fixture
def write(tiny_model, tmp_path):
    return lambda name, **fields: write_adapter(tmp_path / name, tiny_model("llama"), **fields)


class Storage:
    """A layout that nobody can ask before the storage answers."""

    def __init__(self, layout):
        self.layout, self.answers = layout, threading.Event()

    def __getattr__(self, name):
        self.answers.wait()
        return getattr(self.layout, name)


def test_storage_that_does_not_answer_fails_its_adapter_and_keeps_the_place_until_it_does(loaded, write):
    store, words = loaded.adapters, "its storage has not answered for 60 s"
    layout, store.layout, store._clock = store.layout, Storage(store.layout), itertools.count(0, 25).__next__
    stuck, storage = write("a"), store.layout
    for _ in range(2):  # 25 s each
        assert store.advance(stuck, "", 0.0) is None
    with pytest.raises(AdapterNotFound, match=words):
        store.advance(stuck, "", 0.0)
    with pytest.raises(AdapterNotFound, match=words):
        store.add(stuck)
    store.layout = layout
    store.add(write("b", seed=1))
    with pytest.raises(AdapterLimit, match="1 adapters are loaded"):
        store.add(write("c", seed=2))
    (thread,) = (each for each in threading.enumerate() if each.name == "adapter")
    storage.answers.set()
    thread.join()
    assert store.add(stuck).rank == 4


def slot(store, number=0):
    return store._slot(number)


def sleep_and_wake(store, level):
    store.save(level)
    assert store.drop() == store.wake_bytes
    assert bool(store.wake_bytes) is (level == 2)
    assert store.is_asleep
    store.reserve()
    store.restore()
    store.settle()
    assert not store.is_asleep


def test_a_slot_holds_the_scaled_matrices(loaded, write):
    store = loaded.adapters
    info = store.add(write("a", rank=3, alpha=6))
    store.put(1, info.digest)
    tensors = load_file(write("a", rank=3, alpha=6) / WEIGHTS_FILE)
    each = store.layout.maps[0]
    start, end = each.starts[:2]
    a = tensors[f"base_model.model.{each.modules[0]}.lora_A.weight"]
    b = tensors[f"base_model.model.{each.modules[0]}.lora_B.weight"]
    assert torch.equal(store.layout.a_of(slot(store, 1), each)[0, :3], a)
    assert torch.equal(store.layout.b_of(slot(store, 1), each)[:3, start:end], (b * 2).T)
    assert not store.layout.a_of(slot(store, 1), each)[:, 3:].any()
    assert store.ranks.tolist() == [0, 3]
    assert (info.rank, info.num_bytes) == (3, store.layout.slot_bytes)


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_are_the_same_after_a_sleep(loaded, write, level):
    store = loaded.adapters
    digest = store.add(write("a")).digest
    store.put(0, digest)
    before = slot(store).clone()
    sleep_and_wake(store, level)
    assert store.infos.keys() == {digest}
    store.put(0, digest)
    assert torch.equal(slot(store), before)


def test_a_file_that_changed_in_a_deep_sleep_loses_its_adapter_alone(loaded, write):
    store, path = loaded.adapters, write("a")
    changed, kept = store.add(path).digest, store.add(write("b", seed=1)).digest
    write("a", seed=2)
    sleep_and_wake(store, 2)
    assert store.infos.keys() == {kept}
    assert store.lost == {changed: f"{path}: its files changed while the worker slept"}
    found = store.add(path).digest
    assert found != changed


def test_a_file_that_is_gone_after_a_deep_sleep_is_named(loaded, write):
    store, path = loaded.adapters, write("a")
    digest = store.add(path).digest
    path.rename(path.parent / "elsewhere")
    sleep_and_wake(store, 2)
    assert "no such directory" in store.lost[digest]


def test_one_too_many_is_refused_and_a_removed_one_makes_room(loaded, write):
    store = loaded.adapters
    first, _ = (store.add(write(name, seed=seed)).digest for seed, name in enumerate("ab"))
    with pytest.raises(AdapterLimit, match="2 adapters are loaded; max_cpu_loras is 2"):
        store.add(write("c", seed=3))
    store.remove(first)
    third = store.add(write("c", seed=3))
    assert third.digest in store.infos
    assert store.add(write("d", seed=3)) == third, "what is there needs no room"


def test_the_same_files_are_one_adapter(loaded, write):
    store = loaded.adapters
    assert store.add(write("a")) == store.add(write("b"))
    assert len(store.infos) == 1


def test_another_digest_than_the_wanted_one_is_refused(loaded, write):
    with pytest.raises(AdapterNotFound, match=f"not {'0' * 64}"):
        loaded.adapters.add(write("a"), "0" * 64)
    assert not loaded.adapters.infos


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_by_module(loaded, write, value):
    path = write("a")
    tensors = load_file(path / WEIGHTS_FILE)
    name = sorted(tensors)[3]
    tensors[name][0, 0] = value
    save_file(tensors, path / WEIGHTS_FILE)
    module = name.removeprefix("base_model.model.").partition(".lora_")[0]
    with pytest.raises(AdapterInvalid, match=f"{module} has numbers that are not finite"):
        loaded.adapters.add(path)
    assert not loaded.adapters.infos


def test_a_model_without_linear_layers_has_no_adapters(tiny_model):
    with pytest.raises(InvalidSettings, match="no linear layers that can be adapted"):
        load(EngineSettings(model=str(tiny_model("gpt2")), enable_lora=True), CpuDevice(Host()))


def test_without_the_setting_there_is_no_memory_for_any(tiny_model):
    settings = EngineSettings(model=str(tiny_model("llama")))
    model = load(settings, CpuDevice(Host()))
    assert model.adapters is None
    assert model.sleep_parts == (model.weights,)
    model.close()
