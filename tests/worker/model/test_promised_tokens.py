"""Passes that go on from tokens which only the device knows: the same answers, and nobody waits too early."""

from __future__ import annotations

import gc
import weakref
from operator import attrgetter
from unittest.mock import Mock

import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine import batch
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import NewSequence
from dormouse_worker.engine.grammars import Prepared
from dormouse_worker.engine.testing import ManualClock, make_add, make_report, make_sampling
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeTokenCopy
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import load
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.sampling.sampler import choose
from dormouse_worker.model.testing import MAX_POSITIONS, reference_generate
from tests.gpu.answers import make_batch
from tests.worker.engine.engine_kit import finish
from tests.worker.model.sampler_kit import row

BLOCK_SIZE, MAX_TOKENS = 4, 10
PROMPTS = {str(n): [(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))}
RANDOM = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 11}
META = torch.device("meta")


request_id_of = attrgetter("request_id")


class Copier:
    """A `TokenCopier` that remembers its copies."""

    def __init__(self):
        self.copies = []
        self.most_open = 0

    def __call__(self, tokens):
        self.copies.append(FakeTokenCopy(tokens))
        self.most_open = max(self.most_open, self.num_open)
        return self.copies[-1]

    @property
    def num_open(self):
        return sum(not copy.is_awaited for copy in self.copies)


class AheadExecutor:
    """Lets the engine run ahead of a model runner."""

    def __init__(self, runner):
        self.execute_model, self.submit = runner.execute, runner.submit
        self.layer_windows = lambda: runner.cache.spec.windows
        self.prepare_grammar = lambda _: Prepared()

    def runs_ahead(self):
        return True


@pytest.fixture(scope="module")
def loaded(tiny_model):
    """Return a function (architecture, impl) → loaded model."""

    def load_it(architecture, impl="auto"):
        settings = EngineSettings(model=str(tiny_model(architecture)), block_size=BLOCK_SIZE, model_impl=impl)
        return load(settings, CpuDevice(Host()))

    return load_it


def make_runner(model, copier, *, num_blocks=64, host_blocks=0, seqs=4):
    cache, host_cache = (KVCache(model.cache_spec, count, torch.device("cpu")) for count in (num_blocks, host_blocks))
    runner = ModelRunner(model, cache, host_cache, SdpaBackend(), max_num_seqs=seqs)
    if copier is not None:
        runner.run_ahead(copier)
    return runner


def make_engine(model, copier, *, num_blocks=64, host_blocks=0, tokens=256, ahead=True):
    runner = make_runner(model, copier, num_blocks=num_blocks, host_blocks=host_blocks)
    report = make_report(
        num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=min(MAX_POSITIONS, num_blocks * BLOCK_SIZE)
    )
    settings = EngineSettings(model="m", max_num_seqs=4, max_num_batched_tokens=tokens, async_scheduling=ahead)
    return build_engine(settings, report, (num_blocks, host_blocks), AheadExecutor(runner), clock=ManualClock())


def run(engine, samplings):
    """Run all prompts at once, each with its sampling; return {name: tokens}."""
    for (name, prompt), sampling in zip(PROMPTS.items(), samplings, strict=True):
        assert engine.add(make_add(name, prompt, **{"max_tokens": MAX_TOKENS, **sampling})) is None
    return finish(engine, {name: [] for name in PROMPTS})


@pytest.mark.parametrize("tokens", [256, 7])
@pytest.mark.parametrize(
    ("architecture", "impl"), [("llama", "lean"), ("llama", "transformers"), ("gemma2", "auto"), ("gpt2", "auto")]
)
def test_tokens_are_those_of_transformers(loaded, tiny_model, architecture, impl, tokens):
    copier = Copier()
    answers = run(make_engine(loaded(architecture, impl), copier, tokens=tokens), [{}] * 4)
    assert answers == {
        name: reference_generate(tiny_model(architecture), prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()
    }
    assert (copier.most_open, copier.num_open) == (2, 0), "a pass was begun before the tokens of the last had come"


@pytest.mark.parametrize("host_blocks", [0, 12])
def test_a_crowded_cache_changes_nothing(loaded, host_blocks):
    model, copier = loaded("llama"), Copier()
    crowded = make_engine(model, copier, num_blocks=12, host_blocks=host_blocks, tokens=8)
    together = run(crowded, [RANDOM] * 4)
    counters = crowded._scheduler.counters
    assert (counters.preemptions > 0, counters.swaps > 0) == (True, host_blocks > 0)
    assert together == run(make_engine(model, None, ahead=False), [RANDOM] * 4)


@pytest.mark.parametrize(
    "special",
    [
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 1.0, "temperature": 1.0, "seed": 3},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"logit_bias": {5: 3.0}},
    ],
)
def test_one_that_looks_at_tokens_or_tells_more_is_answered_the_same_beside_others(loaded, special):
    model, copier = loaded("llama"), Copier()
    samplings = [{}, RANDOM, {**special, "max_tokens": 2 * MAX_TOKENS}, RANDOM]
    assert run(make_engine(model, copier), samplings) == run(make_engine(model, None, ahead=False), samplings)
    assert copier.num_open == 0
    assert copier.most_open == 2, "the others run ahead while it is there"


def test_rows_that_ask_the_host_are_answered_behind_the_pass_that_others_began_meanwhile(loaded):
    model, asking = (
        loaded("llama"),
        {"a": {"logprobs": 2, "repetition_penalty": 1.5}, "b": {}, "c": {"prompt_logprobs": 1}},
    )
    news = [NewSequence(name, PROMPTS["1"], [], make_sampling(**asking[name])) for name in asking]
    prompts = batch.Batch(
        is_fresh=True,
        released=(),
        swap_out=(),
        swap_in=(),
        new=tuple(news),
        sequences=tuple(
            batch.ScheduledSequence(new.request_id, 0, 5, ([2 * row, 2 * row + 1],), samples=True)
            for row, new in enumerate(news)
        ),
    )
    alone, copier = make_runner(model, None), Copier()
    ahead = make_runner(model, copier)
    first, second = ahead.submit(prompts), ahead.submit(make_batch([("b", 5, 6, ([],)), ("c", 5, 6, ([],))]))
    assert copier.num_open == 2
    third = ahead.submit(make_batch([("a", 5, 6, ([],))]))
    expected = [alone.execute(prompts), alone.execute(make_batch([("b", 5, 6, ([],)), ("c", 5, 6, ([],))]))]
    expected.append(alone.execute(make_batch([("a", 5, 6, ([],))])))
    for answer, other in zip([first(), second(), third()], expected, strict=True):
        assert sorted(answer.sampled, key=request_id_of) == other.sampled
        assert answer.prompt_logprobs == other.prompt_logprobs
    assert first().sampled == first().sampled, "whoever asks again gets the same"


def test_a_pass_whose_tokens_were_not_promised_is_answered_before_the_next_goes_on_from_them(loaded):
    runner = make_runner(loaded("llama"), Copier())
    first = runner.submit(prompt_alone("a", PROMPTS["2"], repetition_penalty=1.5))
    second = runner.submit(make_batch([("a", 17, 18, ([],))]))
    alone = make_runner(loaded("llama"), None)
    expected = [alone.execute(prompt_alone("a", PROMPTS["2"], repetition_penalty=1.5))]
    expected.append(alone.execute(make_batch([("a", 17, 18, ([],))])))
    assert [first(), second()] == expected
    assert first() == expected[0], "whoever asks again gets the same"


def test_an_answer_that_fails_is_not_asked_for_by_the_fresh_batch_behind_it(loaded):
    runner = make_runner(loaded("llama"), Copier())
    runner._conclusion._answer = Mock(side_effect=RuntimeError("boom"))
    waiting = runner.submit(prompt_alone("a", PROMPTS["2"], logprobs=2))
    with pytest.raises(RuntimeError):
        waiting()
    fresh = runner.submit(prompt_alone("b", PROMPTS["1"]))  # needs no such answer
    assert len(fresh().sampled) == 1


def test_only_a_fresh_batch_may_follow_one_that_could_not_begin(loaded):
    runner = make_runner(loaded("llama"), Copier())
    real, runner._conclusion._answer = runner._conclusion._answer, Mock(side_effect=RuntimeError("boom"))
    waiting = runner.submit(prompt_alone("a", PROMPTS["2"], logprobs=2))
    step = make_batch([("a", 17, 18, ([],))])
    with pytest.raises(RuntimeError, match="boom"):
        runner.submit(step)
    runner._conclusion._answer = real
    assert len(waiting().sampled) == 1, "whoever asks again is answered"
    with pytest.raises(RuntimeError, match="not fresh"):
        runner.submit(step)
    assert len(runner.execute(prompt_alone("b", PROMPTS["1"])).sampled) == 1


@pytest.mark.parametrize("sampling", [{}, {"logprobs": 2}])
def test_a_runner_that_nobody_needs_is_gone_at_once(loaded, sampling):
    """Not when the garbage collector comes: at a sleep its buffers must go, and after a start it never comes."""
    runner = make_runner(loaded("llama"), Copier())
    runner.execute(prompt_alone("a", PROMPTS["2"], **sampling))
    is_there = weakref.ref(runner)
    gc.disable()
    try:
        del runner
        assert is_there() is None
    finally:
        gc.enable()


def test_a_fresh_batch_forgets_what_was_promised_and_whoever_waits_still_gets_it(loaded):
    copier = Copier()
    runner = make_runner(loaded("llama"), copier)
    first = runner.submit(prompt_alone("a", PROMPTS["2"]))
    again = runner.submit(prompt_alone("b", PROMPTS["1"]))
    assert copier.num_open == 2
    (token,) = again().sampled
    assert copier.copies[0].is_awaited is False
    assert repr(runner._promised) == "PromisedTokens(0 passes)"
    assert [each.request_id for each in first().sampled] == ["a"]
    expected = make_runner(loaded("llama"), None).execute(prompt_alone("b", PROMPTS["1"]))
    assert [token] == expected.sampled


@pytest.mark.parametrize(
    "samplings",
    [
        [{}, {}, {}],
        [RANDOM, RANDOM, RANDOM],
        [{}, RANDOM, {"temperature": 0.5, "min_p": 0.1}],
        [{"temperature": 2.0, "top_k": 3}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.3}],
    ],
)
def test_no_choice_needs_a_number_from_the_device(samplings):
    """A meta tensor has no numbers: whoever asks for one raises."""
    tokens = choose(torch.empty(3, 300, device=META), [row(3, **sampling) for sampling in samplings])
    assert (tokens.device, tokens.shape, tokens.dtype) == (META, (3,), torch.int64)


def prompt_alone(name, prompt, **sampling):
    """Return a fresh batch of one prompt."""
    return batch.single(NewSequence(name, prompt, [], make_sampling(**sampling)), (list(range(16)),))
