"""The step: what a request's life sends to the front."""

import re

import msgspec
import pytest

from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import TokenLogprobs, TokenOutput
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import ModelOutput, SampledToken
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, next_token, visible_tokens
from dormouse_worker.engine.testing_executor import FakeExecutor


class Setup:
    """An engine over a fake executor."""

    def __init__(self, num_blocks=10, seqs=4, tokens=8, *, host_blocks=0, windows=(None,), caches=True):
        self.clock = ManualClock()
        report = make_report(num_gpu_blocks=num_blocks)
        self.executor = FakeExecutor(report, self.clock, windows)
        settings = EngineSettings(
            model="m", max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_prefix_caching=caches
        )
        self.engine = build_engine(settings, report, (num_blocks, host_blocks), self.executor, clock=self.clock)
        self.scheduler = self.engine._scheduler

    def run(self):
        """Step until idle; return {id: tokens}."""
        tokens: dict[str, list[int]] = {}
        while (outputs := self.engine.step()) is not None:
            for output in outputs.outputs:
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
        self.engine.check_integrity()
        return tokens


def expected(prompt, max_tokens, windows=(None,)):
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(*visible_tokens(tokens, windows)))
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
    setup.executor.execute_model = lambda _: ModelOutput([SampledToken("a", 4, sampled)])
    setup.engine.add(make_add(logprobs=1))
    assert setup.engine.step().outputs[0].logprobs == [sampled]


@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6)], ids=["full", "window", "both"])
@pytest.mark.parametrize("host_blocks", [0, 6])
@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 8, 64])
@pytest.mark.parametrize("num_blocks", [8, 11, 64])
def test_a_request_says_the_same_whatever_happens_to_it(num_blocks, tokens, caches, host_blocks, windows):
    """The invariant of the design, on a fake model whose answer depends on everything that it sees in its cache."""
    setup = Setup(num_blocks, tokens=tokens, host_blocks=host_blocks, windows=windows, caches=caches)
    prompts = {str(n): list(range(n % 3, 3 * n + 2)) for n in range(1, 8)}
    for name, prompt in prompts.items():
        setup.engine.add(make_add(name, prompt, max_tokens=9))
    assert setup.run() == {name: expected(prompt, 9, windows) for name, prompt in prompts.items()}


@pytest.mark.parametrize("host_blocks", [0, 6])
def test_preemption_and_swapping_happened_in_the_smallest_of_these_caches(host_blocks):
    """Else the test above proves nothing about them."""
    setup = Setup(num_blocks=8, host_blocks=host_blocks)
    for n in range(1, 8):
        setup.engine.add(make_add(str(n), list(range(n % 3, 3 * n + 2)), max_tokens=9))
    setup.run()
    counters = setup.scheduler.counters
    assert counters.preemptions > 0
    assert (counters.swaps > 0) == (host_blocks > 0)


def test_prefixes_were_found_in_the_largest_of_these_caches():
    """Else the test above proves nothing about them either."""
    setup = Setup(num_blocks=64)
    for n in range(1, 8):
        setup.engine.add(make_add(str(n), list(range(n % 3, 3 * n + 2)), max_tokens=9))
    setup.run()
    assert setup.scheduler.counters.prefix_hits > 0


def test_what_another_worker_began_is_continued_and_its_tokens_count(setup):
    tokens = expected([1, 2, 3], 6)
    message = make_add(prompt=[1, 2, 3], max_tokens=6)
    message = type(message)(message.request_id, message.prompt_token_ids, message.sampling, tokens[:4])
    assert setup.engine.add(message) is None
    outputs = [setup.engine.step().outputs[0] for _ in range(2)]
    assert [output.token_ids for output in outputs] == [[tokens[4]], [tokens[5]]]
    assert [output.finish_reason for output in outputs] == [None, "length"]
    assert outputs[0].prefill_seconds == 1.0


def test_a_continued_request_that_has_all_its_tokens_is_refused(setup):
    message = make_add(max_tokens=2)
    message = type(message)(message.request_id, message.prompt_token_ids, message.sampling, [7, 8])
    assert setup.engine.add(message) == "resume has 2 tokens; max_tokens is 2"


class TestPromptLogprobs:
    """They come in parts, in order, once."""

    def ask(self, setup, num_tokens=20):
        assert setup.engine.add(make_add("p", range(num_tokens), max_tokens=2, prompt_logprobs=0)) is None

    def told(self, setup):
        told = []
        while (outputs := setup.engine.step()) is not None:
            for output in outputs.outputs:
                told += [-part.sampled for part in output.prompt_logprobs or []]
        return told

    def test_there_is_one_for_each_prompt_token_but_the_first(self, setup):
        self.ask(setup)
        assert self.told(setup) == list(range(1, 20))

    def test_those_that_were_told_before_a_preemption_are_not_told_again(self):
        setup = Setup(num_blocks=8, tokens=64, seqs=4)
        setup.engine.add(make_add("old", range(100, 112), max_tokens=20))
        setup.engine.step()
        self.ask(setup, 16)
        assert self.told(setup) == list(range(1, 16))
        assert setup.scheduler.counters.preemptions > 0

    def test_one_message_holds_a_bounded_number(self):
        setup = Setup(num_blocks=300, tokens=2048, seqs=1024)
        setup.executor.report = make_report(num_gpu_blocks=300, max_model_len=1024)
        settings = EngineSettings(model="m", max_num_seqs=1024, max_num_batched_tokens=2048)
        report = setup.executor.report
        setup.engine = build_engine(settings, report, (300, 0), setup.executor, clock=setup.clock)
        self.ask(setup, 600)
        sizes = [len(output.prompt_logprobs) for output in setup.engine.step().outputs if output.prompt_logprobs]
        assert sizes == [256, 256, 87]


def test_cached_tokens_come_with_the_first_output(setup):
    setup.engine.add(make_add("a", range(10), max_tokens=1))
    setup.run()
    setup.engine.add(make_add("b", range(10), max_tokens=2))
    first, second = setup.engine.step(), setup.engine.step()
    assert [message.outputs[0].cached_tokens for message in (first, second)] == [8, 0]
    assert (first.prefix_queries, first.prefix_hits) == (10, 8)
    assert (second.prefix_queries, second.prefix_hits) == (0, 0)


def test_prefixes_can_be_forgotten(setup):
    setup.engine.add(make_add("a", range(10), max_tokens=1))
    setup.run()
    setup.engine.forget_prefixes()
    setup.engine.add(make_add("b", range(10), max_tokens=1))
    setup.run()
    assert setup.scheduler.counters.prefix_hits == 0


def test_preemptions_are_counted_in_the_messages():
    setup = Setup(num_blocks=8)
    for n in range(1, 8):
        setup.engine.add(make_add(str(n), list(range(n, 3 * n + 2)), max_tokens=9))
    counted = 0
    while (outputs := setup.engine.step()) is not None:
        counted += outputs.preemptions
    assert counted == setup.scheduler.counters.preemptions > 0


def test_an_abort_frees_at_once_and_ends_each_known_request_with_a_message(setup):
    setup.engine.add(make_add("a"))
    setup.engine.step()
    assert setup.engine.abort(["a", "unknown"]) == [TokenOutput("a", [], "abort")]
    assert setup.scheduler.tables.pool.num_used == 0
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


def test_images_are_refused_where_the_model_reads_none(setup):
    image = ImageInput(bytes(32), [(1, 2)], "a.safetensors", 10)
    message = msgspec.structs.replace(make_add(prompt=[1, 2, 2, 3]), images=[image])
    assert setup.engine.add(message) == "the prompt has 1 images; this worker reads none"
    assert image.num_rows == 2


def test_failures_in_a_row_are_counted_until_a_pass_is_good(setup):
    for name in "abc":
        setup.engine.add(make_add(name, range(8), max_tokens=2))
    for count in (1, 2):
        setup.executor.fail_once["execute_model"] = RuntimeError("boom")
        setup.engine.step()
        assert setup.engine.num_failures_in_a_row == count
    setup.engine.step()
    assert setup.engine.num_failures_in_a_row == 0


def test_after_a_failed_pass_the_others_are_told_anew_and_say_the_same():
    setup = Setup(num_blocks=8, seqs=2, host_blocks=6)
    prompts = {name: list(range(n, n + 12)) for n, name in enumerate("abcdef")}
    for name, prompt in prompts.items():
        setup.engine.add(make_add(name, prompt, max_tokens=9))
    for _ in range(6):
        setup.engine.step()
    setup.executor.fail_once["execute_model"] = RuntimeError("boom")
    failed = setup.engine.step().failed
    assert failed
    rest = setup.run()
    for name in set(prompts) - set(failed):
        assert rest[name] == expected(prompts[name], 9)[-len(rest[name]) :]


def test_blocks_held_by_nobody_are_found(setup):
    setup.scheduler.tables.pool.allocate(1)
    with pytest.raises(RuntimeError, match="blocks are wrong"):
        setup.engine.check_integrity()


def test_it_explains_itself(setup):
    setup.engine.add(make_add())
    assert repr(setup.engine) == (
        "Engine(Scheduler(running=0, waiting=1, "
        "BlockTables(0 sequences, BlockPool(total=10, free=10, cached=0, used=0)), "
        "SwapSpace(total=0, free=0, sequences=0)))"
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
