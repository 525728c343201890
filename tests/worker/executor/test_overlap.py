"""Where a copy engine copies, the golden pass computes the first layers before the last weights are there."""

import threading
from itertools import count

import pytest

from dormouse_worker.common.commands import TAGS, WEIGHTS
from dormouse_worker.common.errors import ModelChanged
from dormouse_worker.executor.testing import generate, make_fake_worker
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.testing import write_tiny_model

PATIENCE_S = 90  # only a test that fails waits so long
each_level = pytest.mark.parametrize("level", [1, 2])
each_impl = pytest.mark.parametrize("impl", ["lean", "transformers"])


class CopyEngine(FakeDevice):
    """A device that copies beside the computation; the copy of the last weights waits while `gate` is there."""

    has_copy_engine = True
    gate = None
    end_address = None

    def copy(self, target, source):
        if self.gate is not None and target.data_ptr() + len(target) == self.end_address:
            assert self.gate.wait(PATIENCE_S), "nothing computed before the last weights"
        super().copy(target, source)


class WatchedBackend:
    """An attention backend that says which layers computed."""

    def __init__(self, backend):
        self._backend = backend
        self.layers = []
        self.has_computed = threading.Event()

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def plan(self, metadata, device):
        return WatchedPlan(self._backend.plan(metadata, device), self)


class WatchedPlan:
    """A plan of such a backend."""

    def __init__(self, plan, backend):
        self._plan, self._backend = plan, backend
        self.write = plan.write

    def attend(self, call, query, pool):
        self._backend.layers.append(call.layer_idx)
        self._backend.has_computed.set()
        return self._plan.attend(call, query, pool)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a model of 5 MB in two layers: the end of the first lies in the first window."""
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_key_value_heads": 4, "head_dim": 96}
    return write_tiny_model(tmp_path_factory.mktemp("model"), **sizes)


@pytest.fixture
def make(directory):
    made = []

    def make(impl="lean"):
        worker = make_fake_worker(directory, CopyEngine(), kv_cache_memory_bytes=1 << 20, model_impl=impl)
        made.append(worker)
        worker.load_model()
        worker.initialize_cache(40, 0)
        weights = worker._model.weights
        weights._slice_bytes = 1 << 20
        worker.fake.end_address = weights._arena._address + weights.num_bytes
        return worker

    yield make
    for worker in made:
        worker.shutdown()
        assert worker.fake.memory.used_bytes == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "arrival"]


@each_level
def test_the_first_layer_computes_before_the_last_weights_are_there(make, level):
    worker = make()
    before = generate(worker, num_tokens=6)
    worker.sleep(level, TAGS)
    worker._backend = watched = WatchedBackend(worker._backend)
    worker.fake.gate = watched.has_computed
    report = worker.wake_up(TAGS)
    assert watched.layers == [0, 1]
    assert list(report.phases)[:2] == ["reserve", WEIGHTS]
    assert generate(worker, num_tokens=6) == before


def test_a_forward_pass_that_knows_no_layers_waits_for_all_weights(make):
    worker = make("transformers")
    before = generate(worker, num_tokens=6)
    worker.sleep(2, TAGS)
    worker._backend = watched = WatchedBackend(worker._backend)
    worker.fake.gate = gate = threading.Event()
    waking = threading.Thread(target=worker.wake_up, args=(TAGS,))
    waking.start()
    assert not watched.layers
    gate.set()
    waking.join(PATIENCE_S)
    assert generate(worker, num_tokens=6) == before


@each_level
@each_impl
def test_a_copy_that_fails_anywhere_fails_the_pass_and_leaves_it_asleep(make, level, impl):
    worker = make(impl)
    before = generate(worker, num_tokens=6)
    worker.sleep(level, TAGS)
    for index in count():
        worker.fake.fail_copy_at(index)
        try:
            worker.wake_up(TAGS)
        except RuntimeError as error:
            assert "did not copy" in str(error)  # noqa: PT017  the loop ends where nothing fails
        if worker.fake.disarm():
            break
        assert worker.fake.memory.used_bytes == 0
        with pytest.raises(AssertionError, match="sleep"):
            generate(worker)
    assert index >= 2
    assert generate(worker, num_tokens=6) == before


def test_weights_alone_are_all_there_when_their_wake_returns(make):
    worker = make()
    before = generate(worker, num_tokens=6)
    worker.sleep(1, TAGS)
    worker.wake_up((WEIGHTS,))
    assert not worker._model.weights.is_arriving
    worker.wake_up(TAGS)
    assert generate(worker, num_tokens=6) == before


def test_a_model_that_changed_is_told_as_that_and_not_as_other_golden_tokens(make, directory):
    worker = make()
    worker.sleep(2, TAGS)
    file = directory / "model.safetensors"
    contents = file.read_bytes()
    try:
        file.write_bytes(contents[:-4] + bytes(4))
        with pytest.raises(ModelChanged, match="is not what was loaded before the sleep"):
            worker.wake_up(TAGS)
    finally:
        file.write_bytes(contents)
    assert worker.fake.memory.used_bytes == 0
    worker.wake_up(TAGS)
