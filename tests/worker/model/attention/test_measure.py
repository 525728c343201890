"""Timing the candidates: who wins, who drops out, and with which passes."""

import pytest
import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.model.attention.interface import AttentionShape, BackendSizes
from dormouse_worker.model.attention.measure import Measurement, make_run, measure, trial_passes
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.kv_cache import LayerCache

SHAPE = AttentionShape(4, 2, 16, 24, torch.float32, 4, window=6, has_soft_cap=True, has_sinks=True)
SIZES = BackendSizes((SHAPE,), max_num_seqs=3, max_model_len=20)


class Device:
    """A clock that runs only while a candidate computes, and counts the waits."""

    def __init__(self):
        self.now_s = 0.0
        self.waits = 0

    def takes(self, *seconds):
        """Return a run that takes these times, one after the other, the last one for ever."""
        left = list(seconds)

        def run():
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run

    def fails(self):
        raise RuntimeError("no kernel image")

    def measure(self, **runs):
        return measure(runs, clock=lambda: self.now_s, synchronize=self.wait)

    def wait(self):
        self.waits += 1


def test_the_fastest_wins_by_its_median_after_the_first_run():
    device = Device()
    measured = device.measure(slow=device.takes(2.0), fast=device.takes(60.0, 1.0, 1.0, 9.0, 1.0))
    assert (measured.fastest, measured.seconds) == ("fast", {"slow": 2.0, "fast": 1.0})


def test_of_equally_fast_ones_the_preferred_wins():
    device = Device()
    assert device.measure(b=device.takes(1.0), a=device.takes(1.0)).fastest == "b"


def test_every_time_is_taken_between_two_waits_for_the_device():
    device = Device()
    device.measure(one=device.takes(1.0))
    assert device.waits == 12  # one run to compile and five that count


def test_a_candidate_that_fails_is_out_with_its_words():
    device = Device()
    measured = device.measure(broken=device.fails, slow=device.takes(5.0))
    assert measured.fastest == "slow"
    assert measured.failures == {"broken": "RuntimeError: no kernel image"}


def test_if_all_fail_the_error_names_each():
    with pytest.raises(Internal, match=r"no attention backend computes on this device: a: x; b: y"):
        _ = Measurement({}, {"a": "x", "b": "y"}).fastest


def test_the_trial_decodes_with_every_sequence_and_fills_one_chunk():
    decode, prefill = trial_passes(SIZES, num_blocks=4, max_num_batched_tokens=9)
    assert (decode.query_lens.tolist(), decode.context_lens.tolist()) == ([1, 1, 1], [20, 20, 20])
    assert (prefill.query_lens.tolist(), prefill.context_lens.tolist()) == ([9], [9])
    assert prefill.positions.tolist() == list(range(9))
    assert max(decode.block_tables.max(), prefill.block_tables.max()) < 4
    assert decode.slot_mapping.max() < 16


def test_a_trial_runs_on_a_real_backend_and_leaves_zeros():
    layer = LayerCache(torch.ones(16, 2, 16), torch.ones(16, 2, 24))
    passes = trial_passes(SIZES, num_blocks=4, max_num_batched_tokens=16)
    make_run(SdpaBackend(SIZES), SHAPE, layer, passes)()
    assert not layer.key.any()
    assert not layer.value.any()
