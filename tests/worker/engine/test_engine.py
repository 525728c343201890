"""The step: what a request's life sends to the front."""

import re

import pytest

from dormouse_worker.engine.blocks import BlockAllocator
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.scheduler import Limits, Scheduler
from dormouse_worker.engine.testing import FakeExecutor, ManualClock, make_add, next_token
from dormouse_worker.ipc import TokenLogprobs, TokenOutput


class Setup:
    """An engine over a fake executor."""

    def __init__(self, num_blocks=10, seqs=4, tokens=8):
        self.clock = ManualClock()
        self.executor = FakeExecutor(clock=self.clock)
        self.scheduler = Scheduler(BlockAllocator(num_blocks, 4), Limits(seqs, tokens, 32), self.clock)
        self.engine = Engine(self.executor, self.scheduler, self.clock)

    def run(self):
        """Step until idle; return {id: tokens}."""
        tokens: dict[str, list[int]] = {}
        while (outputs := self.engine.step()) is not None:
            for output in outputs.outputs:
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
        self.engine.check_integrity()
        return tokens


def expected(prompt, max_tokens):
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


@pytest.fixture
def setup():
    return Setup()


def test_an_idle_engine_has_nothing_to_step(setup):
    assert setup.engine.step() is None
    assert (setup.engine.has_work, setup.engine.num_requests) == (False, 0)


def test_tokens_come_one_per_step_and_the_last_says_why(setup):
    setup.engine.add(make_add(prompt=[1, 2], max_tokens=2))
    first, last = setup.engine.step(), setup.engine.step()
    tokens = expected([1, 2], 2)
    assert [first.outputs[0].token_ids, last.outputs[0].token_ids] == [[tokens[0]], [tokens[1]]]
    assert [first.outputs[0].finish_reason, last.outputs[0].finish_reason] == [None, "length"]
    assert (first.running, first.waiting, first.kv_cache_usage) == (1, 0, 0.1)
    assert (last.running, last.waiting, last.kv_cache_usage) == (0, 0, 0.0)


def test_the_first_output_carries_the_times_and_later_ones_none(setup):
    setup.engine.add(make_add(max_tokens=2))
    setup.clock.now_s = 2.5
    first, last = setup.engine.step().outputs[0], setup.engine.step().outputs[0]
    assert (first.queue_seconds, first.prefill_seconds) == (2.5, 1.0)
    assert (last.queue_seconds, last.prefill_seconds) == (0.0, 0.0)


def test_logprobs_are_passed_on(setup):
    sampled = TokenLogprobs(-0.5, [1], [-0.5])
    compute = setup.executor.execute_model
    setup.executor.execute_model = lambda batch: [
        type(token)(token.request_id, token.token_id, sampled) for token in compute(batch)
    ]
    setup.engine.add(make_add(logprobs=1))
    assert setup.engine.step().outputs[0].logprobs == [sampled]


@pytest.mark.parametrize("tokens", [1, 3, 8, 64])
@pytest.mark.parametrize("num_blocks", [8, 11, 64])
def test_a_request_says_the_same_alone_chunked_in_a_batch_and_preempted(num_blocks, tokens):
    """The invariant of the design, on a fake model whose answer depends on everything in its cache."""
    setup = Setup(num_blocks=num_blocks, tokens=tokens)
    prompts = {str(n): list(range(n, 3 * n + 2)) for n in range(1, 8)}
    for name, prompt in prompts.items():
        setup.engine.add(make_add(name, prompt, max_tokens=9))
    assert setup.run() == {name: expected(prompt, 9) for name, prompt in prompts.items()}


def test_preemption_happened_in_the_smallest_of_these_caches():
    """Else the test above proves nothing about it."""
    setup = Setup(num_blocks=8)
    for n in range(1, 8):
        setup.engine.add(make_add(str(n), list(range(n, 3 * n + 2)), max_tokens=9))
    setup.run()
    assert setup.scheduler.num_preemptions > 0


def test_an_abort_frees_at_once_and_ends_each_known_request_with_a_message(setup):
    setup.engine.add(make_add("a"))
    setup.engine.step()
    assert setup.engine.abort(["a", "unknown"]) == [TokenOutput("a", [], "abort")]
    assert setup.scheduler.blocks.num_used == 0
    assert setup.engine.step() is None


def test_everything_can_be_aborted(setup):
    for name in "abcdef":
        setup.engine.add(make_add(name))
    setup.engine.step()
    assert [output.request_id for output in setup.engine.abort_all()] == list("abcdef")
    assert not setup.engine.has_work


def test_a_forward_pass_that_raises_fails_its_batch_and_no_other_request(setup):
    for name in "abcdef":
        setup.engine.add(make_add(name, max_tokens=1))
    setup.executor.fail_once["execute_model"] = RuntimeError("boom")
    failed = setup.engine.step()
    assert failed.failed == dict.fromkeys("abc", "the forward pass failed: RuntimeError: boom")
    assert (failed.outputs, failed.running, failed.waiting) == ([], 0, 3)
    assert set(setup.run()) == set("def")


@pytest.mark.parametrize(
    ("prompt", "why"),
    [([], "prompt is empty; at least 1 token is needed"), (range(32), "prompt has 32 tokens; .* the limit is 32")],
)
def test_a_prompt_that_can_not_run_is_refused_with_the_limit(setup, prompt, why):
    refusal = setup.engine.add(make_add(prompt=prompt))
    assert refusal is not None
    assert re.search(why, refusal)
    assert not setup.engine.has_work


def test_blocks_held_by_nobody_are_found(setup):
    setup.scheduler.blocks.grow("ghost", 1)
    with pytest.raises(RuntimeError, match="1 blocks are held though no request is left"):
        setup.engine.check_integrity()


def test_it_explains_itself(setup):
    setup.engine.add(make_add())
    assert repr(setup.engine) == (
        "Engine(Scheduler(running=0, waiting=1, BlockAllocator(total=10, free=10, used=0, sequences=0)))"
    )


def test_failures_in_a_row_are_counted_and_a_good_step_forgets_them():
    setup = Setup()
    for count in (1, 2):
        setup.executor.fail_once["execute_model"] = RuntimeError("boom")
        setup.engine.add(make_add(str(count)))
        setup.engine.step()
        assert setup.engine.num_failures_in_a_row == count
    setup.engine.add(make_add("good"))
    setup.engine.step()
    assert setup.engine.num_failures_in_a_row == 0
