"""Random loads over a small cache, run to the end: conservation, bounds, right answers, progress, no starvation."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import (
    ManualClock,
    make_report,
    make_sampling,
    next_token,
    visible_tokens,
)
from dormouse_worker.engine.testing_drafts import FakeDraftModel
from dormouse_worker.engine.testing_stages import AheadFakeExecutor, StagedFakeExecutor

MAX_MODEL_LEN, MAX_SEQS, MAX_TOKENS = 24, 4, 9
WINDOWS = [(None,), (5,), (None, 5), (5, None, 3)]


BOUND = Grammar("start: whatever the model says", ())


def expected_tokens(prompt, count, windows):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(*visible_tokens(tokens, windows)))
    return tokens[len(prompt) :]


class EngineMachine(RuleBasedStateMachine):
    """Requests arrive, are aborted, fail with a pass, and are computed; a model of tokens says what must come out."""

    @initialize(
        windows=st.sampled_from(WINDOWS),
        host_blocks=st.sampled_from([0, 3, 8]),
        caches=st.booleans(),
        num_blocks=st.integers(6, 8),
        stages=st.integers(1, 3),
        runs_ahead=st.booleans(),
        most_forced=st.integers(0, 5),
        is_stubborn=st.booleans(),
        raises_at_once=st.booleans(),
        method=st.sampled_from(["off", "ngram", "draft"]),
        draft_model=st.builds(FakeDraftModel, st.integers(0, 4), st.booleans()),
    )
    def begin(self, windows, host_blocks, caches, num_blocks, stages, runs_ahead, method, **failing):
        report = make_report(num_gpu_blocks=num_blocks, max_model_len=MAX_MODEL_LEN)
        self.windows, self.clock = windows, ManualClock()
        self.executor = (AheadFakeExecutor if runs_ahead else StagedFakeExecutor)(report, self.clock, windows)
        vars(self.executor).update(failing)
        self.engine = build_engine(
            EngineSettings(
                model="m",
                max_num_seqs=MAX_SEQS,
                max_num_batched_tokens=MAX_TOKENS,
                enable_prefix_caching=caches,
                pipeline_parallel_size=1 if runs_ahead else stages,
                speculation_method=method,
            ),
            report,
            (num_blocks, host_blocks),
            self.executor,
            clock=self.clock,
        )
        self.scheduler = self.engine._scheduler
        self.open: dict[str, list[int]] = {}  # id → tokens that must still come
        self.asked: dict[str, list[int]] = {}  # id → prompt tokens whose log-probabilities must still come
        self.asking: dict[str, int] = {}  # id → length of the prompt, of all that ever asked
        self.count = 0

    @rule(
        first=st.integers(0, 1),
        length=st.integers(1, 9) | st.integers(1, MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, 16),
        num_resumed=st.integers(0, 11),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "x"]),
        asks=st.booleans(),
        is_bound=st.booleans(),
        wrong=st.none() | st.sets(st.integers(0, 16)),
        count=st.integers(1, 6),
    )
    def arrive(self, count, **request):
        for _ in range(count):
            self.arrive_one(**request)

    def arrive_one(self, *, first, length, max_tokens, num_resumed, priority, salt, asks, is_bound, wrong):
        """`wrong` = which tokens are not as its caller predicts; None = he predicts nothing."""
        self.count += 1
        name, prompt = str(self.count), list(range(first, first + length))  # so that many share a beginning
        tokens = expected_tokens(prompt, min(max_tokens, MAX_MODEL_LEN - len(prompt)), self.windows)
        resumed = tokens[: min(num_resumed, len(tokens) - 1)]
        sampling = make_sampling(
            max_tokens=max_tokens, prompt_logprobs=0 if asks else None, grammar=BOUND if is_bound else None
        )
        predicted = [] if wrong is None else [token + (i in wrong) for i, token in enumerate(tokens)]
        assert (
            self.engine.add(AddRequest(name, prompt, sampling, resumed, priority, salt, prediction_token_ids=predicted))
            is None
        )
        self.open[name] = tokens[len(resumed) :]
        self.asked[name] = prompt[1:] if asks else []
        if asks:
            self.asking[name] = len(prompt)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), what=st.sampled_from(["abort", "abort everything", "fail", "forget prefixes", "settle"]))
    def disturb(self, data, what):
        if what == "settle":
            for outputs in self.engine.settle():
                self.check_all(outputs)
            assert not self.executor.under_way
        elif what == "abort":
            name = data.draw(st.sampled_from(sorted(self.open)))
            assert [output.finish_reason for output in self.engine.abort([name])] == ["abort"]
            del self.open[name]
        elif what == "abort everything":
            self.engine.abort_all()
            self.open.clear()
        elif what == "fail":
            self.executor.fail_once["execute_model"] = RuntimeError("boom")
            self.run_a_pass()
        else:
            self.engine.forget_prefixes()

    @rule(count=st.integers(1, 20))
    def run_some_passes(self, count):
        for _ in range(count):
            self.run_a_pass()

    def run_a_pass(self):
        self.executor.batches.clear()
        outputs = self.engine.step()
        if outputs is None:
            assert not self.open
            return
        for batch in self.executor.batches:
            assert 0 < batch.num_tokens <= MAX_TOKENS
            assert len(batch.sequences) <= MAX_SEQS
            assert self.count_logit_rows(batch) <= MAX_SEQS
        self.check_all(outputs)

        for request in self.scheduler._queues.waiting:
            if request.shortage is not None and not self.scheduler.tables.has_eased(request.shortage):
                assert not self.would_fit(request), f"{request.request_id} is not tried again though there is room"

    def would_fit(self, request):
        """Try it; it must be the end of the test if there is room."""
        tables, swap = self.scheduler.tables, self.scheduler.swap
        if request.request_id in swap:
            return tables.restore("probe", swap.shape(request.request_id), request.num_tokens, 0) is not None
        return tables.admit("probe", self.scheduler._placement.find_prefix(request), request.num_tokens, 0)

    def count_logit_rows(self, batch):
        rows = sum(sequence.samples + len(sequence.draft_token_ids) for sequence in batch.sequences)
        for sequence in batch.sequences:
            if sequence.request_id in self.asking:
                rows += max(0, min(sequence.end, self.asking[sequence.request_id] - 1) - sequence.start)
        return rows

    def check_all(self, outputs):
        for name in outputs.failed:
            del self.open[name]
        for output in outputs.outputs:
            self.check(output)

    def check(self, output):
        name = output.request_id
        for part in output.prompt_logprobs or []:
            assert -part.sampled == self.asked[name].pop(0)
        for token in output.token_ids:
            assert token == self.open[name].pop(0)
            assert not self.asked[name], "a token came before the prompt was told"
        assert (output.finish_reason is not None) == (not self.open[name])
        if output.finish_reason is not None:
            del self.open[name]

    @invariant()
    def everything_is_conserved(self):
        if self.count:
            self.engine.check_integrity()
            assert self.scheduler.num_running <= MAX_SEQS
            assert set(self.scheduler.request_ids) == set(self.open)

    def teardown(self):
        if not self.count:
            return
        steps_left: dict[str, int] = defaultdict(lambda: 60 * (len(self.open) + 1))
        while self.engine.has_work:
            head = next(iter(self.scheduler.request_ids), "")
            steps_left[head] -= 1
            assert steps_left[head] > 0, f"{head} starves"
            self.run_a_pass()
        assert not self.open
        assert self.scheduler.tables.pool.num_used == 0


def test_random_loads():
    run_state_machine_as_test(EngineMachine, settings=settings(stateful_step_count=30, deadline=None))


@pytest.mark.parametrize(
    ("stages", "executor"), [(1, StagedFakeExecutor), (2, StagedFakeExecutor), (1, AheadFakeExecutor)]
)
@pytest.mark.parametrize("windows", WINDOWS)
def test_an_abort_storm_returns_every_block(windows, stages, executor):
    report = make_report(num_gpu_blocks=7, max_model_len=MAX_MODEL_LEN)
    engine = build_engine(
        EngineSettings(
            model="m", max_num_seqs=MAX_SEQS, max_num_batched_tokens=MAX_TOKENS, pipeline_parallel_size=stages
        ),
        report,
        (7, 4),
        executor(report, windows=windows),
        clock=ManualClock(),
    )
    for n in range(300):
        engine.add(AddRequest(str(n), [n % 11] * (n % 5 * (n % 5) + 1), make_sampling(max_tokens=9)))
        engine.step()
        engine.abort([str(n - 17)])
    assert engine._scheduler.counters.swaps > 0
    engine.abort_all()
    assert not [output for outputs in engine.settle() for output in outputs.outputs]
    assert not engine.has_work
    engine.check_integrity()
    assert engine._scheduler.tables.pool.num_used == 0
    assert engine._scheduler.swap.num_free == engine._scheduler.swap.num_blocks
