"""The profile: what is run, what is remembered, and when it is run all the same."""

import dataclasses

import pytest

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.memory.arithmetic import Limit, Measured
from dormouse_worker.model.memory.profile_run import ProfiledModel, ProfiledRank, make_key, profile_memory
from dormouse_worker.model.testing import write_tiny_model

MIB = 1 << 20
RANK = ProfiledRank(2, "cpu", 1)
MODEL = ProfiledModel(weights_bytes=100 * MIB, block_bytes=MIB, max_model_len=128, num_groups=1)


class FakeMeter:
    """Implements `Meter`: says what the test wants, and how often it measured."""

    measured_by = "resident memory"

    def __init__(self, total_bytes=1024 * MIB):
        self.total_bytes = total_bytes
        self.num_measured = 0

    def open(self):
        pass

    def limit(self):
        return Limit(self.total_bytes, is_known=True)

    def measure(self, weights_bytes, *, warm_up, peak, graph_bytes=0):
        self.num_measured += 1
        warm_up()
        peak()
        return Measured(weights_bytes, 50 * MIB, 200 * MIB, 7.0, graph_bytes)

    def measure_part(self, name, make, unmake=None):
        raise NotImplementedError

    def own_bytes(self):
        return 300 * MIB

    def release_unused(self):
        pass

    def rest_bytes(self):
        return 300 * MIB

    def free_bytes(self):
        return 500 * MIB


@pytest.fixture
def directory(tmp_path):
    return write_tiny_model(tmp_path / "model")


@pytest.fixture
def meter():
    return FakeMeter()


def settings(directory, **overrides):
    fields = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 4, "gpu_memory_utilization": 0.5}
    return EngineSettings(model=str(directory), **{**fields, **overrides})


def profile(meter, settings, *, model=MODEL, rank=RANK, runs=None):
    return profile_memory(settings, rank, model, meter, lambda batches: runs is None or runs.append(batches))


def test_a_small_batch_settles_and_then_all_are_run(meter, directory):
    runs = []
    report = profile(meter, settings(directory), runs=runs)
    assert [len(batches) for batches in runs] == [1, 3]
    assert runs[0][0] == runs[1][-1]
    assert (report.rank, report.device, report.num_gpu_blocks) == (2, "cpu", 512 - 350)
    assert (report.seconds, report.measured_by) == (7.0, "resident memory")


def test_a_model_whose_logits_have_their_place_samples_all_sequences_once(meter, directory):
    runs = []
    profile(meter, settings(directory), model=dataclasses.replace(MODEL, samples_once=True), runs=runs)
    num_sampled = [[sum(each.samples for each in batch.sequences) for batch in batches] for batches in runs]
    assert num_sampled == [[1], [4, 1, 1]]


def test_the_estimate_of_graphs_goes_into_the_report(meter, directory):
    report = profile(meter, settings(directory), model=dataclasses.replace(MODEL, graph_bytes=12 * MIB))
    assert (report.graph_bytes, report.num_gpu_blocks) == (12 * MIB, 512 - 362)


def test_without_a_directory_every_start_measures(meter, directory):
    for _ in range(2):
        profile(meter, settings(directory))
    assert meter.num_measured == 2


def test_a_second_start_verifies_instead_of_measuring(meter, directory, tmp_path):
    remembering = settings(directory, profile_cache=str(tmp_path / "cache"))
    first, second = (profile(meter, remembering) for _ in range(2))
    assert meter.num_measured == 1
    assert second.seconds < first.seconds == 7.0
    assert second.num_gpu_blocks == first.num_gpu_blocks


def test_what_does_not_hold_any_more_is_measured_anew_and_remembered(meter, directory, tmp_path, caplog):
    caplog.set_level("INFO")
    remembering = settings(directory, profile_cache=str(tmp_path / "cache"))
    profile(meter, remembering)
    other = FakeMeter(2048 * MIB)
    for _ in range(2):
        assert profile(other, remembering).total_bytes == 2048 * MIB
    assert other.num_measured == 1
    assert "does not apply, measuring again: there are 2147483648 bytes" in caplog.text
    assert "the profile of an earlier start holds" in caplog.text


def test_another_model_setting_device_rank_or_number_of_threads_is_another(directory, tmp_path):
    cache = {"profile_cache": str(tmp_path / "cache")}
    keys = {make_key(settings(directory, **cache), RANK)}
    keys.add(make_key(settings(directory, **cache, max_num_seqs=8), RANK))
    keys |= {
        make_key(settings(directory, **cache), rank)
        for rank in (ProfiledRank(0, "cpu", 1), ProfiledRank(2, "GPU-1", 1), ProfiledRank(2, "cpu", 2))
    }
    write_tiny_model(directory, hidden_size=64)
    keys.add(make_key(settings(directory, **cache), RANK))
    assert len({key.digest() for key in keys}) == len(keys) == 6


def test_a_grants_words_make_no_other_profile(directory, tmp_path):
    cache = {"profile_cache": str(tmp_path / "cache")}
    grant = {"device_memory_budget_bytes": 1 << 30, "device_memory_reserve_bytes": 1, "device_memory_sharers": 2}
    granted = settings(directory, **cache, **grant, expected_device="GPU-1")
    assert make_key(granted, RANK) == make_key(settings(directory, **cache), RANK)
