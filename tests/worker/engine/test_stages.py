"""The engine over a pipeline: several batches under way, and what may not happen to their requests meanwhile."""

import pytest

from dormouse_worker.common.errors import RankLost
from dormouse_worker.common.ipc import TokenLogprobs, TokenOutput
from dormouse_worker.engine.testing import make_add
from dormouse_worker.engine.testing_stages import StagedFakeExecutor
from tests.worker.engine.engine_kit import StagedEngine, expected


class Pipeline(StagedEngine):
    """Over fake stages."""

    def __init__(self, stages=2, *, seqs=8, **settings):
        super().__init__(StagedFakeExecutor, max_num_seqs=seqs, pipeline_parallel_size=stages, **settings)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_as_many_batches_are_under_way_as_there_are_stages(stages):
    pipeline = Pipeline(stages)
    pipeline.add(*"abcdef", max_tokens=8)
    tokens = pipeline.run()
    assert tokens == {name: expected(range(n, n + 3), 8) for n, name in enumerate("abcdef")}
    assert pipeline.executor.most_under_way == (stages if stages > 1 else 0)


def test_prompts_that_wait_are_shared_out_and_so_is_whoever_runs():
    pipeline = Pipeline()
    pipeline.add(*"abcdef", max_tokens=20)
    pipeline.step()
    assert pipeline.under_way() == ["def"]
    assert [batch.request_ids for batch in pipeline.executor.batches] == [["a", "b", "c"], ["d", "e", "f"]]
    pipeline.step()
    assert pipeline.under_way() == ["abc"]


def test_no_more_requests_run_than_may():
    pipeline = Pipeline(seqs=4)
    pipeline.add(*"abcdef", max_tokens=5)
    pipeline.step()
    assert (pipeline.scheduler.num_running, pipeline.scheduler.num_waiting) == (4, 2)
    assert len(pipeline.run()) == 6


def test_an_aborted_request_keeps_its_blocks_until_its_batch_has_come_and_then_says_nothing():
    pipeline = Pipeline()
    pipeline.add("a", "b", max_tokens=20)
    pipeline.step()
    assert pipeline.under_way() == ["b"]
    used = pipeline.scheduler.tables.pool.num_used
    assert pipeline.engine.abort(["b"]) == [TokenOutput("b", [], "abort")]
    assert pipeline.engine.abort(["b"]) == []
    assert pipeline.engine.is_leaving("b")
    assert not pipeline.engine.is_leaving("a")
    assert not pipeline.engine.is_leaving("unknown")
    assert (pipeline.scheduler.tables.pool.num_used, pipeline.scheduler.request_ids) == (used, ["a"])
    pipeline.step()
    assert (pipeline.scheduler.tables.pool.num_used, "b" in pipeline.tokens) == (used // 2, False)
    assert pipeline.run() == {"a": expected(range(3), 20)}


def test_prompt_logprobs_of_an_aborted_request_are_not_told():
    pipeline = Pipeline()
    pipeline.add("a", "b", max_tokens=20, prompt_logprobs=0)
    first = pipeline.step()
    assert next(output.prompt_logprobs for output in first.outputs) == [
        TokenLogprobs(-1.0, [], []),
        TokenLogprobs(-2.0, [], []),
    ]
    pipeline.engine.abort(["b"])
    assert pipeline.under_way() == ["b"]
    assert pipeline.step().outputs == []


def test_settling_waits_for_what_is_under_way_and_hands_over_nothing_else():
    pipeline = Pipeline(3)
    pipeline.add("a", "b", "c", max_tokens=20)
    pipeline.step()
    settled = list(pipeline.engine.settle())
    assert [[output.request_id for output in outputs.outputs] for outputs in settled] == [["b"], ["c"]]
    assert (pipeline.under_way(), pipeline.engine.num_requests) == ([], 3)
    assert list(pipeline.engine.settle()) == []


def test_nobody_under_way_is_preempted_and_whoever_goes_first_waits_for_his_blocks():
    """All 9 blocks are held when the first asks for its fifth, and the last in line is under way."""
    pipeline = Pipeline(num_blocks=9, seqs=2)
    pipeline.add("a", length=15, max_tokens=9)
    assert pipeline.engine.add(make_add("b", range(50, 67), max_tokens=9)) is None
    lines = []
    while pipeline.step() is not None:
        lines.append(pipeline.under_way())
    assert lines[:4] == [["b"], ["a"], ["b"], []], "nothing is handed over before b has come"
    assert pipeline.tokens == {"a": expected(range(15), 9), "b": expected(range(50, 67), 9)}
    assert pipeline.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("host_blocks", [0, 8])
@pytest.mark.parametrize("stages", [2, 3])
def test_tokens_are_the_same_in_a_cache_that_is_too_small(stages, host_blocks):
    pipeline = Pipeline(stages, num_blocks=9, seqs=6, host_blocks=host_blocks)
    pipeline.add(*"abcdef", length=10, max_tokens=12)
    assert pipeline.run() == {name: expected(range(n, n + 10), 12) for n, name in enumerate("abcdef")}
    counters = pipeline.scheduler.counters
    assert counters.preemptions > 0
    assert (counters.swaps > 0) == (host_blocks > 0)


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_batches_behind_one_that_failed_count_for_nothing_and_are_computed_anew(is_stubborn):
    pipeline = Pipeline(3)
    pipeline.executor.is_stubborn = is_stubborn
    pipeline.add(*"abcdef", max_tokens=6)
    pipeline.step()
    pipeline.executor.fail_once["execute_model"] = RuntimeError("boom")
    pipeline.step()  # hands over a batch that will fail, behind those of c, d, e and f
    pipeline.engine.abort(["a"])
    failed = {}
    while (outputs := pipeline.step()) is not None:
        failed |= outputs.failed
    assert failed == {"b": "the forward pass failed: RuntimeError: boom"}
    pipeline.engine.check_integrity()
    for number, name in enumerate("cdef", start=2):
        assert pipeline.tokens[name] == expected(range(number, number + 3), 6)


def test_an_aborted_request_behind_a_batch_that_failed_is_gone():
    pipeline = Pipeline(2)
    pipeline.executor.fail_once["execute_model"] = RuntimeError("boom")
    pipeline.add("a", "b", max_tokens=6)
    pipeline.engine._hand_over()
    pipeline.engine.abort(["b"])
    assert pipeline.step().failed.keys() == {"a"}
    assert not pipeline.engine.has_work
    pipeline.engine.check_integrity()


def test_a_group_that_breaks_behind_a_batch_that_failed_is_for_good():
    pipeline = Pipeline(2)
    pipeline.add("a", "b", max_tokens=6)
    pipeline.executor.fail_once["execute_model"] = RuntimeError("boom")
    pipeline.engine._hand_over()
    assert repr(pipeline.engine._under_way) == "UnderWay(2 of 2)"
    _, wait = pipeline.engine._under_way.batches.pop()

    def lost():
        wait()
        raise RankLost("rank 1")

    pipeline.engine._under_way.batches.append((pipeline.executor.under_way[1], lost))
    with pytest.raises(RankLost, match="rank 1"):
        pipeline.engine.step()
