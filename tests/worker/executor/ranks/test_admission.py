"""Who may join a group, and what ranks must have in common."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from dormouse_worker.common.errors import InsufficientMemory, RanksDisagree
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, NewSequence, SampledToken, ScheduledSequence
from dormouse_worker.engine.executor import SleepReport
from dormouse_worker.engine.testing import make_report, make_sampling
from dormouse_worker.executor.ranks.admission import Expected, refusal_of
from dormouse_worker.executor.ranks.agreement import (
    RankFailed,
    culprit,
    fewest_blocks,
    group_report,
    group_sleep,
    require_same,
    to_error,
)
from dormouse_worker.executor.ranks.messages import Answer, Hello, Step, decode_leader, decode_rank, encode

FITS = Hello(1, "group-1", "settings", "1.0", "model", "pod-1")
EXPECTED = Expected(2, 2, FITS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"group_id": "group-0"}, "rank 1 (pod pod-1): its group id is 'group-0', the leader's is 'group-1'"),
        ({"settings_digest": "x"}, "rank 1 (pod pod-1): its settings digest is 'x', the leader's is 'settings'"),
        ({"version": "0.9"}, "rank 1 (pod pod-1): its version is '0.9', the leader's is '1.0'"),
        ({"model_digest": "x"}, "rank 1 (pod pod-1): its model digest is 'x', the leader's is 'model'"),
        ({"rank": 4}, "rank 4 (pod pod-1): the group has ranks 0 to 3"),
        ({"rank": -1}, "rank -1 (pod pod-1): the group has ranks 0 to 3"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused_by_name(changes, words):
    assert refusal_of(msgspec.structs.replace(FITS, **changes), EXPECTED, ()) == words


def test_a_rank_is_welcome_once():
    assert refusal_of(FITS, EXPECTED, (0, 2)) == ""
    assert "is there already" in refusal_of(FITS, EXPECTED, (0, 1))


def test_the_fewest_blocks_hold_and_the_poorest_ranks_report_stands_for_the_group():
    assert fewest_blocks([(9, 1), (7, 3), (8, 2)]) == (7, 1)
    reports = [make_report(rank=0, num_gpu_blocks=9, num_cpu_blocks=1, seconds=4.0)]
    reports.append(make_report(rank=1, num_gpu_blocks=7, num_cpu_blocks=3, seconds=2.0))
    report = group_report(reports)
    assert (report.rank, report.num_gpu_blocks, report.num_cpu_blocks, report.seconds) == (1, 7, 1, 4.0)


def test_what_must_be_the_same_is_named_with_both_values():
    assert require_same({"rank 0": 4, "rank 1": 4}, "block size") == 4
    with pytest.raises(RanksDisagree, match="rank 2: its block size is 8, that of rank 0 is 4"):
        require_same({"rank 0": 4, "rank 1": 4, "rank 2": 8}, "block size")


def test_bytes_of_a_sleep_are_added_and_phases_are_as_long_as_the_longest():
    report = group_sleep([SleepReport(1, 2, 3, {"save": 1.0}), SleepReport(10, 20, 30, {"save": 0.5, "drop": 2.0})])
    assert report == SleepReport(11, 22, 33, {"save": 1.0, "drop": 2.0})


def test_an_error_keeps_its_class_and_gets_the_ranks_name():
    error = to_error("rank 1", Answer(1, error="InsufficientMemory", message="no room"))
    assert isinstance(error, InsufficientMemory)
    assert str(error) == "rank 1: no room"
    assert str(to_error("rank 1", Answer(1, error="KeyError", message="'x'"))) == "rank 1: KeyError: 'x'"
    assert isinstance(to_error("rank 1", Answer(1, error="Path")), RankFailed)


def test_who_failed_by_itself_is_the_culprit_not_who_was_let_down():
    failed = {0: Answer(1, error="PeerFailed"), 1: Answer(1, error="RankLost"), 2: Answer(1, error="ModelChanged")}
    assert culprit(failed) == 2
    assert culprit({1: failed[1], 0: failed[0]}) == 0


def test_ranks_of_several_pods_differ_in_the_place_of_images_alone():
    settings = EngineSettings(model="m")
    assert replace(settings, image_dir="/dev/shm/one").digest() == settings.digest()
    assert replace(settings, block_size=32).digest() != settings.digest()


def test_a_batch_survives_the_way_to_a_rank():
    sampling = make_sampling(logit_bias={3: 0.5}, bad_words_token_ids=((1, 2), (3,)))
    new = NewSequence("r", [1, 2, 3], [4], sampling)
    scheduled = ScheduledSequence("r", 0, 4, ([1, 2], []), samples=True)
    batch = Batch(True, ("old",), ((1, 2),), ((3, 4),), (new,), (scheduled,))
    step = Step(7, batch, [SampledToken("r", 5)])
    assert decode_leader(encode(step)[4:]) == step


def test_what_is_no_message_is_not_decoded():
    with pytest.raises(msgspec.DecodeError):
        decode_leader(b"\x80\x04\x95pickle")
    with pytest.raises(msgspec.DecodeError):
        decode_rank(encode(Step(1, Batch(True, (), (), (), (), ())))[4:])


def test_what_a_decode_step_sends_does_not_grow_with_the_sequence():
    """Numbers take up to five bytes instead of one, and that is all."""

    def num_bytes(position: int) -> int:
        scheduled = ScheduledSequence("r", position, position + 1, ([],), samples=True)
        return len(encode(Step(1, Batch(False, (), (), (), (), (scheduled,)), [SampledToken("r", 5)])))

    assert num_bytes(1 << 17) - num_bytes(1) <= 8
