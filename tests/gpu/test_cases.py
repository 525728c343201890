"""The cases for a GPU on the fake device: they hold there, and they see what is wrong."""

import pytest

from dormouse_worker.common.ipc import TokenLogprobs
from tests.gpu import (
    adapter_case,
    ahead_case,
    bench_parts,
    bound_case,
    draft_case,
    parity_case,
    quantized_case,
    sleep_cases,
    spike_case,
    swap_case,
    task_case,
)
from tests.gpu.asked_rank import Said, count_equal
from tests.gpu.device_kit import FakeKit
from tests.gpu.large_model import TINY, write_large_model


def verdicts(rows):
    return {row.what: row.holds for row in rows if row.goal is not None}


@pytest.fixture
def kit():
    kit = FakeKit()
    yield kit
    assert kit.device.memory.used_bytes == 0, "a case left device memory behind"
    assert kit.device.memory.neighbour_bytes == 0


class Forgetful(FakeKit):
    """A device that loses a number of every copy."""

    def __init__(self):
        super().__init__()
        copy = self.device.copy

        def damage(target, source):
            copy(target, source)
            target[:4] = 255  # a NaN

        self.device.copy = damage


def test_the_spike_holds(kit):
    assert set(verdicts(spike_case.run(kit)).values()) == {True}


def test_the_spike_sees_one_wrong_byte():
    rows = verdicts(spike_case.run(Forgetful()))
    assert rows["spike: bytes of a replay that differ after the sleep"] is False


def test_a_worker_answers_the_same_after_every_sleep(kit):
    rows = verdicts(sleep_cases.cycles(kit, num_cycles=2))
    assert len(rows) == 6
    assert set(rows.values()) == {True}


def test_a_wake_among_neighbours_is_refused_and_succeeds_later(kit):
    assert set(verdicts(sleep_cases.neighbour_takes_all(kit)).values()) == {True}


def test_a_worker_answers_as_transformers_does(kit):
    assert set(verdicts(parity_case.run(kit, ["llama"])).values()) == {True}


def test_a_worker_that_runs_ahead_answers_the_same(kit):
    rows = verdicts(ahead_case.run(kit))
    assert set(rows.values()) == {True}
    assert len(rows) == 5


SLOW = [pytest.param(case, marks=pytest.mark.slow) for case in (adapter_case, quantized_case, task_case)]


@pytest.mark.parametrize("case", [bound_case, draft_case, swap_case, *SLOW])
def test_a_rank_that_is_asked_answers_as_the_cpu_does(kit, case):
    assert set(verdicts(case.run(kit)).values()) == {True}


def test_a_wrong_answer_is_no_answer_of_the_cpu(capsys):
    said, truth = Said([1, 2]), Said([1, 3])
    assert count_equal([said, said, Said(why_not="odd")], [said, truth, said]) == 1
    assert "1: Said(token_ids=[1, 2]" in capsys.readouterr().out
    one, other = (Said([1], [TokenLogprobs(logprob, [], [])]) for logprob in (-1.0, -1.1))
    assert count_equal([one, one], [one, other]) == 1


def test_the_benchmark_measures_everything(kit, tmp_path):
    write_large_model(tmp_path, TINY, kit.device.torch_device)
    rows = {row.what: row for row in bench_parts.measure(kit, bench_parts.FAKE_PLAN, tmp_path, age_s=1.0)}
    cold = [rows[name].ours for name in rows if name.startswith("of it")]
    assert rows["cold start to the first token"].ours == pytest.approx(sum(cold), rel=1e-3)
    assert rows["decode, batch 2"].peer > rows["decode, batch 1"].peer
    assert rows["decode ahead, batch 2"].peer == rows["decode, batch 2"].peer
    assert {"recording of 2 graphs", "memory of the graphs"} <= rows.keys()
    assert {"sleep, level 1", "wake, level 2: weights", "residue, level 2", "prefill of 128 tokens"} <= rows.keys()


def test_a_process_knows_its_age():
    assert 0 < bench_parts.process_age_s() < 86400


def test_a_model_for_which_the_disk_is_too_small_is_refused_with_the_numbers(tmp_path):
    huge = bench_parts.LLAMA_8B.__class__(1 << 16, 100, 512, 64, 128, 1 << 18, 1 << 20, 4096)
    with pytest.raises(OSError, match=r"the model takes \d+ bytes, \d+ are free; set TMPDIR"):
        write_large_model(tmp_path, huge, None)
    assert list(tmp_path.iterdir()) == []


def test_the_limits_count_every_weight_and_every_context():
    assert TINY.matrix_elements == 2 * 64 * (16 * (2 * 4 + 2 * 2) + 3 * 128) + 64 * 512
    assert TINY.kv_elements == 2 * 2 * 2 * 16
    head = 64 * 512
    assert TINY.prefill_flops(10) == 2 * 10 * (TINY.matrix_elements - head) + 2 * head + 2 * 100 * 4 * 16 * 2
