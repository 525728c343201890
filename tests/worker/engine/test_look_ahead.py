"""The engine ahead of the device: a sequence goes on from tokens that nobody knows yet, and ends with what it said."""

import pytest

from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.ipc import TokenOutput
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.look_ahead import LookAhead
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, make_sampling
from dormouse_worker.engine.testing_stages import AheadFakeExecutor, StagedFakeExecutor
from tests.worker.engine.engine_kit import StagedEngine, expected


class Ahead(StagedEngine):
    """Over a fake device that runs ahead."""

    def __init__(self, *, tokens=64, **settings):
        super().__init__(AheadFakeExecutor, max_num_batched_tokens=tokens, **settings)


def test_the_next_batch_is_handed_over_before_the_output_of_the_one_before_is_asked_for():
    ahead = Ahead()
    ahead.add("a", "b", max_tokens=3)
    ahead.step()
    assert ahead.under_way() == ["ab"]
    assert [batch.sequences[0].start for batch in ahead.executor.batches] == [0, 3]
    assert ahead.run() == {"a": expected(range(3), 3), "b": expected(range(1, 4), 3)}
    assert ahead.executor.most_under_way == 2


def test_nothing_is_computed_beyond_the_last_token():
    ahead = Ahead()
    ahead.add("a", max_tokens=4)
    ahead.add("b", length=30, max_tokens=9)  # max_model_len is 32
    assert {name: len(tokens) for name, tokens in ahead.run().items()} == {"a": 4, "b": 2}
    assert [batch.request_ids for batch in ahead.executor.batches] == [["a", "b"], ["a", "b"], ["a"], ["a"]]


def test_a_sequence_that_a_token_ends_is_told_at_once_and_leaves_with_its_last_batch():
    ahead = Ahead()
    second = expected(range(3), 2)[1]
    ahead.add("a", max_tokens=9, stop_token_ids=(second,))
    ahead.add("b", length=5, max_tokens=9)
    ahead.step()
    ended = ahead.step()
    assert [output.finish_reason for output in ended.outputs] == ["stop", None]
    assert (ended.running, ahead.under_way(), ahead.engine.is_leaving("a")) == (2, ["ab"], True)
    assert ahead.engine.abort(["a"]) == [], "it has ended"
    after = ahead.step()
    assert [output.request_id for output in after.outputs] == ["b"]
    assert (after.running, ahead.under_way(), ahead.engine.is_leaving("a")) == (1, ["b"], False)
    assert ahead.run() == {"a": expected(range(3), 2), "b": expected(range(5), 9)}


def test_an_aborted_sequence_keeps_its_blocks_until_both_of_its_batches_have_come():
    ahead = Ahead()
    ahead.add("a", "b", max_tokens=20)
    ahead.step()
    ahead.engine._hand_over()
    assert ahead.under_way() == ["ab", "ab"]
    assert ahead.engine.abort(["b"]) == [TokenOutput("b", [], "abort")]
    used = ahead.scheduler.tables.pool.num_used
    told = len(ahead.tokens["b"])
    ahead.step()
    assert (ahead.engine.is_leaving("b"), ahead.scheduler.tables.pool.num_used) == (True, used)
    ahead.step()
    assert not ahead.engine.is_leaving("b")
    assert len(ahead.tokens["b"]) == told
    assert ahead.run()["a"] == expected(range(3), 20)


@pytest.mark.parametrize("tokens", [2, 5, 64])
def test_prompts_in_chunks_go_on_while_others_decode(tokens):
    ahead = Ahead(tokens=tokens)
    ahead.add(*"abcd", length=11, max_tokens=7)
    assert ahead.run() == {name: expected(range(n, n + 11), 7) for n, name in enumerate("abcd")}


@pytest.mark.parametrize("host_blocks", [0, 8])
def test_tokens_are_the_same_in_a_cache_that_is_too_small(host_blocks):
    ahead = Ahead(num_blocks=9, host_blocks=host_blocks)
    ahead.add(*"abcdef", length=10, max_tokens=12)
    assert ahead.run() == {name: expected(range(n, n + 10), 12) for n, name in enumerate("abcdef")}
    counters = ahead.scheduler.counters
    assert counters.preemptions > 0
    assert (counters.swaps > 0) == (host_blocks > 0)


@pytest.mark.parametrize(("block_size", "known"), [(4, 12), (1, 13)])
def test_only_known_tokens_name_blocks(block_size, known):
    """A block that a promised token fills has no name before the token is known, and the right one then."""
    ahead = Ahead(block_size=block_size)
    ahead.add("a", length=3, max_tokens=11)
    ahead.run()
    said = [0, 1, 2, *expected(range(3), 11)]
    assert ahead.engine.add(make_add("again", said, max_tokens=1)) is None
    ahead.step()
    assert ahead.executor.batches[-1].sequences[0].start == known, "all full blocks that were computed"
    assert ahead.run()["again"] == expected(said, 1)


@pytest.mark.parametrize("raises_at_once", [False, True])
def test_a_batch_that_fails_costs_all_its_sequences_and_the_next_request_is_computed(raises_at_once):
    ahead = Ahead(tokens=6)
    ahead.executor.raises_at_once = raises_at_once
    ahead.add("a", "b", max_tokens=6)
    ahead.step()
    ahead.add("c", length=4, max_tokens=6)
    ahead.executor.fail_once["execute_model"] = RuntimeError("boom")
    failed = {}
    while (outputs := ahead.step()) is not None:
        failed |= outputs.failed
    assert failed == dict.fromkeys("abc", "the forward pass failed: RuntimeError: boom")
    ahead.add("d", length=5, max_tokens=6)
    assert ahead.run()["d"] == expected(range(5), 6)


def test_who_was_only_in_the_batch_behind_one_that_failed_is_computed_anew():
    ahead = Ahead(tokens=3)
    ahead.executor.fail_once["execute_model"] = RuntimeError("boom")
    ahead.add("a", length=3, max_tokens=6)
    ahead.add("b", length=2, max_tokens=6)
    ahead.engine._hand_over()
    assert ahead.under_way() == ["a", "ab"]
    assert ahead.step().failed.keys() == {"a"}
    assert ahead.run() == {"b": expected(range(2), 6)}


def test_ranks_that_are_lost_while_a_batch_is_handed_over_end_the_engine():
    ahead = Ahead()
    ahead.executor.raises_at_once = True
    ahead.executor.fail_once["execute_model"] = RankLost("rank 1: its process ended")
    ahead.add("a", max_tokens=6)
    with pytest.raises(RankLost, match="rank 1"):
        ahead.step()


@pytest.mark.parametrize(
    ("executor", "settings", "limits"),
    [
        (AheadFakeExecutor, {}, (2, True)),
        (AheadFakeExecutor, {"async_scheduling": False}, (1, False)),
        (StagedFakeExecutor, {}, (1, False)),
        (StagedFakeExecutor, {"pipeline_parallel_size": 3}, (3, False)),
    ],
)
def test_whoever_can_and_may_runs_ahead(executor, settings, limits):
    report = make_report()
    engine = build_engine(
        EngineSettings(model="m", max_num_batched_tokens=64, **settings),
        report,
        (10, 0),
        executor(report),
        clock=ManualClock(),
    )
    chosen = engine._scheduler.limits
    assert (chosen.max_batches_under_way, chosen.looks_ahead) == limits


def test_whoever_may_get_another_token_is_chosen():
    going, promised_all, leaving = (
        Request(name, [1], make_sampling(max_tokens=2), arrival_s=0.0) for name in ("going", "promised", "leaving")
    )
    going.advance(1, samples=True)
    promised_all.advance(1, samples=True)
    promised_all.advance(2, samples=True)
    leaving.is_leaving = True
    batches = LookAhead(max_model_len=9)
    assert batches.choose([going, promised_all, leaving]) == [going]
    assert batches.share(7) == 7
    assert repr(batches) == "LookAhead([] requests under way)"
