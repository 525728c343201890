"""What the groups' rows are computed of, and that a probe says what it is asked for."""

from __future__ import annotations

import pytest

from bench.groups_figures import Pair, Tally, decode_rows, recovery_rows, tokens_row, traffic_row
from bench.groups_probe import CIRCUMSTANCES, Probe, Said, Say, started
from bench.groups_recovery import Recovery, count_lost
from bench.groups_traffic import measure_step_bytes
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.testing import MAX_POSITIONS, reference_generate, write_tiny_model


def make_recovery(**changes):
    fields = {"rank": 0, "start_s": 8.0, "recovery_s": 12.0, "num_streams": 8, "num_lost": 0, "num_others_ended": 0}
    return Recovery(**{**fields, **changes})


def test_a_case_that_says_something_else_is_named_and_fails_the_row():
    tally = Tally()
    tally.add("llama, T=2", {"in one batch": [[1, 2]], "in chunks": [[1, 2]]}, [[1, 2]])
    assert (tokens_row(tally).ours, tokens_row(tally).holds) == (2, True)
    tally.add("gpt2, P=2", {"in one batch": [[1, 3]], "in chunks": [[1, 2]]}, [[1, 2]])
    row = tokens_row(tally)
    assert (row.ours, row.peer, row.holds) == (3, 4, False)
    assert str(tally) == "1 of 4 cases say something else: gpt2, P=2, in one batch"


def test_decoding_is_judged_by_the_pair_with_the_middle_ratio():
    pairs = [Pair(80.0, 100.0), Pair(10.0, 100.0), Pair(90.0, 100.0)]
    row, _ = decode_rows((1, 2), 64, pairs, 0.85)
    assert (row.ours, row.peer, row.holds) == (80.0, 100.0, False)
    assert decode_rows((2, 1), 64, pairs, 0.8)[0].holds is True


def test_how_much_others_disturbed_stands_beside_it():
    _, others = decode_rows((2, 1), 64, [Pair(80.0, 100.0, 0.05), Pair(80.0, 100.0, 0.3)], 0.8)
    assert (others.ours, others.holds) == (0.3, None)
    assert [Pair(1.0, 1.0, cores).is_quiet for cores in (0.05, 0.3)] == [True, False]


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, [True, True, True]),
        ({"recovery_s": 13.1}, [False, True, True]),
        ({"num_lost": 1}, [True, False, True]),
        ({"num_others_ended": 1}, [True, True, False]),
    ],
)
def test_a_kill_is_judged_by_its_time_its_streams_and_the_other_group(changes, verdicts):
    assert [row.holds for row in recovery_rows([make_recovery(**changes)])] == verdicts


def test_the_streams_of_all_kills_are_added():
    *times, lost, ended = recovery_rows([make_recovery(num_lost=1), make_recovery(rank=1, num_others_ended=2)])
    assert len(times) == 2
    assert (lost.ours, ended.ours) == (1, 2)
    assert "of 16 streams" in lost.what


def test_a_stream_is_lost_where_a_token_is_missing_or_another():
    assert count_lost([[1, 2], [1], [1, 3], [1, 2]], [1, 2]) == 2


def test_a_step_takes_as_many_bytes_behind_long_sequences():
    short, long = measure_step_bytes()
    assert 0 < long <= 1.01 * short
    assert traffic_row(short, long).holds
    assert not traffic_row(short, 2 * short).holds


def test_a_probe_says_what_the_model_says_in_all_circumstances(tmp_path):
    model = write_tiny_model(tmp_path / "model")
    prompts = [[(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))]
    sizes = {"block_size": 4, "max_model_len": MAX_POSITIONS, "max_num_seqs": 4, "threads": 1}
    settings = EngineSettings(model=str(model), dtype="float32", memory_limit_bytes=4 << 30, **sizes)
    with started(settings) as executor:
        probe = Probe(settings, executor)
        said = probe.answer(Say(prompts, 10))
        assert isinstance(said, Said)
        expected = [reference_generate(model, prompt, 10) for prompt in prompts]
        assert said.tokens == dict.fromkeys(CIRCUMSTANCES, expected)
