"""When a model beside is asked for drafts, for how many, and what happens when it fails or is of no use."""

import pytest

from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import Batch, Proposals, ScheduledSequence
from dormouse_worker.engine.drafts.model import MAX_PAUSE_PASSES, ModelPace
from dormouse_worker.engine.drafts.pace import RowCosts
from dormouse_worker.engine.speculation.turn import DraftTurn
from dormouse_worker.engine.testing import ManualClock, make_report, make_sampling
from dormouse_worker.engine.testing_drafts import FakeDraftModel
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.engine_kit import expected, finish

PASS_S = 0.010
PROMPT = [1, 2, 3, 4, 5]


def make_batch(num_seqs, num_asking=None):
    num_asking = num_seqs if num_asking is None else num_asking
    sequences = [
        ScheduledSequence(str(i), 4, 5, (), samples=True, num_wanted=int(i < num_asking)) for i in range(num_seqs)
    ]
    return Batch(is_fresh=False, released=(), swap_out=(), swap_in=(), new=(), sequences=tuple(sequences))


def make_pace(num_seqs=1, share=None, rounds=30):
    """Return the pace where a pass of the model takes that share of one of the target; None = nobody measured."""
    costs = RowCosts(8)
    for _ in range(rounds):
        costs.observe(num_seqs, num_seqs, PASS_S)
        costs.observe(num_seqs, 2 * num_seqs, PASS_S)  # rows cost nothing
    pace = ModelPace(costs)
    for _ in range(0 if share is None else rounds):
        pace.observe(make_batch(num_seqs), Proposals({}, seconds_per_token=share * PASS_S))
    return pace


def test_passes_that_it_only_read_end_a_pause_and_forgive_nothing():
    pace = make_pace()
    pace.observe(make_batch(1), Proposals({}, has_failed=True))
    for is_over in (False, False, True):
        assert bool(pace.choose(0.9, 1, 0, 8)) == is_over
        pace.observe(make_batch(1, num_asking=0), Proposals({}, seconds=PASS_S))
    assert "1 failures in a row" in repr(pace)


@pytest.mark.parametrize("num_seqs", [1, 4])
def test_the_dearer_its_passes_the_shorter_its_drafts(num_seqs):
    lengths = [make_pace(num_seqs, share).choose(0.8, num_seqs, 0, 8) for share in (0.01, 0.2, 0.5, 1.5)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[-1]) == (8, 0)
    assert 0 < lengths[2] < lengths[1] < 8


def test_the_worse_it_guesses_the_shorter_its_drafts():
    pace = make_pace(share=0.1)
    lengths = [pace.choose(chance, 1, 0, 8) for chance in (0.95, 0.6, 0.05)]
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 0


def test_where_it_does_not_pay_trials_cost_no_more_than_a_hundredth():
    for num_unread in (0, 50):
        pace = make_pace(share=2.0)
        asked = sum(pace.choose(0.5, 1, num_unread, 8) for _ in range(40_000))
        assert 0 < asked * 2.0 * (1 + num_unread) <= 400


def test_a_trial_beside_others_costs_the_pass_that_all_of_them_wait_for():
    pace = make_pace(8, share=2.0)
    asked = sum(pace.choose(0.5, 8, 0, 8) for _ in range(40_000))
    assert 0 < asked * 2.0 * 8 <= 400


def test_a_trial_costs_the_row_that_scores_it_too():
    costs = RowCosts(8)
    for _ in range(30):
        costs.observe(8, 8, PASS_S)
        costs.observe(8, 16, 2 * PASS_S)  # a row costs a token
    pace = ModelPace(costs)
    for _ in range(90):
        pace.observe(make_batch(8), Proposals({}, seconds_per_token=0.001 * PASS_S))
    assert 0 < sum(pace.choose(0.5, 8, 0, 8) for _ in range(40_000)) <= 400


def test_a_pass_for_few_of_many_does_not_tell_what_one_for_all_costs():
    pace = make_pace(4, share=0.05)
    before = repr(pace)
    pace.observe(make_batch(4, num_asking=1), Proposals({}, seconds_per_token=PASS_S))
    pace.observe(make_batch(4), Proposals({}))
    assert repr(pace) == before
    pace.observe(make_batch(4, num_asking=2), Proposals({}, seconds_per_token=PASS_S))
    assert repr(pace) != before
    unmeasured = ModelPace(RowCosts(8))
    unmeasured.observe(make_batch(1), Proposals({}, seconds_per_token=PASS_S))
    assert "{}" in repr(unmeasured), "nobody knows what a pass takes without drafts"


def test_what_others_had_of_it_is_what_a_sequence_expects_at_first():
    pace = make_pace()
    first = pace.begin().chance
    pace.note(4, 4)
    good = pace.begin().chance
    pace.note(4, 0)
    assert first < good > pace.begin().chance


def test_one_that_fails_is_left_alone_for_longer_each_time():
    pace = make_pace(share=0.1)
    pauses = []
    for _ in range(14):
        pace.observe(make_batch(1), Proposals({}, has_failed=True))
        pauses.append(0)
        while not pace.choose(0.9, 1, 0, 8):
            pace.observe(make_batch(1), None)
            pauses[-1] += 1
    assert pauses[:3] == [2, 4, 8]
    assert pauses[-1] == MAX_PAUSE_PASSES
    assert (pace.take_failures(), pace.take_failures()) == (14, 0)
    pace.observe(make_batch(1), Proposals({}))
    pace.observe(make_batch(1), Proposals({}, has_failed=True))
    assert "1 failures in a row" in repr(pace)


def make_engine(draft_model, **settings):
    fields = {"max_num_seqs": 6, "max_num_batched_tokens": 32, "speculation_method": "draft", **settings}
    report = make_report(num_gpu_blocks=40, max_model_len=64)
    executor = FakeExecutor(report)
    executor.draft_model = draft_model
    return build_engine(EngineSettings(model="m", **fields), report, (40, 0), executor, clock=ManualClock()), executor


def ask(engine, max_tokens=30, **fields):
    engine.add(AddRequest("r", PROMPT, make_sampling(max_tokens=max_tokens), **fields))
    counts, said = [], []
    while (message := engine.step()) is not None:
        said += [token for output in message.outputs for token in output.token_ids]
        counts += [message.drafts] if message.drafts is not None else []
    assert said == expected(PROMPT, max_tokens)
    engine.check_integrity()
    return counts


def drafted(executor):
    return [len(sequence.draft_token_ids) for batch in executor.batches for sequence in batch.sequences]


@pytest.mark.parametrize("method", ["draft", "eagle", "mtp"])
def test_what_it_proposes_is_scored_and_what_is_right_saves_passes(method):
    """A draft model, and a head of either kind: the sequence's own text does not repeat itself."""
    engine, executor = make_engine(FakeDraftModel(), speculation_method=method)
    counts = ask(engine)
    assert len(executor.batches) < 18
    assert drafted(executor)[:2] == [0, 0], "the first token waits for nobody"
    assert sum(count.num_draft_tokens for count in counts) == 30 - len(executor.batches)


@pytest.mark.parametrize("wrong_every", [1, 2, 5])
def test_what_it_says_wrongly_is_not_said(wrong_every):
    engine, executor = make_engine(FakeDraftModel(wrong_every))
    counts = ask(engine)
    assert sum(count.num_draft_tokens for count in counts) > sum(
        sum(count.num_accepted_tokens_per_pos) for count in counts
    )
    assert any(drafted(executor))


def test_one_that_fails_costs_nobody_anything_and_is_counted():
    engine, executor = make_engine(FakeDraftModel(is_failing=True))
    counts = ask(engine)
    assert not any(drafted(executor))
    assert 0 < sum(count.num_model_failures for count in counts) < 6


def test_a_prediction_that_is_right_more_often_goes_before_it():
    answer = expected(PROMPT, 30)
    engine, executor = make_engine(FakeDraftModel(wrong_every=1))
    ask(engine, prediction_token_ids=answer)
    wanted = [sequence.num_wanted for batch in executor.batches for sequence in batch.sequences]
    assert sum(map(bool, wanted)) < 3
    assert sum(drafted(executor)) > 15


def test_nothing_is_wanted_behind_the_end():
    engine, executor = make_engine(FakeDraftModel())
    for most in (1, 2, 3, 4):
        ask(engine, max_tokens=most)
    assert max(drafted(executor)) <= 1
    assert not engine._scheduler.num_running


@pytest.mark.parametrize(("max_num_seqs", "most"), [(3, 0), (4, 1)])
def test_many_share_the_rows_that_are_left(max_num_seqs, most):
    engine, executor = make_engine(FakeDraftModel(), max_num_seqs=max_num_seqs)
    for name, max_tokens in (("a", 12), ("b", 12)):
        engine.add(AddRequest(name, PROMPT, make_sampling(max_tokens=max_tokens)))
    assert finish(engine, {"a": [], "b": []}) == dict.fromkeys("ab", expected(PROMPT, 12))
    wanted = {
        sequence.num_wanted for batch in executor.batches if len(batch.sequences) == 2 for sequence in batch.sequences
    }
    assert max(wanted) == most


def test_without_blocks_to_spare_nothing_is_wanted():
    report = make_report(num_gpu_blocks=16, max_model_len=64)
    executor = FakeExecutor(report)
    settings = EngineSettings(model="m", max_num_seqs=8, max_num_batched_tokens=32, speculation_method="draft")
    engine = build_engine(settings, report, (16, 0), executor, clock=ManualClock())
    for name in "abc":
        engine.add(AddRequest(name, PROMPT, make_sampling(max_tokens=40)))
    assert finish(engine, {name: [] for name in "abc"}) == dict.fromkeys("abc", expected(PROMPT, 40))


def test_each_shows_what_it_has():
    engine, _ = make_engine(FakeDraftModel())
    assert "ModelPace" in repr(engine._scheduler.speculation)
    ask(engine)
    scheduler = engine._scheduler
    turn = DraftTurn(scheduler.speculation, scheduler.tables, scheduler._fill(), num_chosen=2, num_running=3)
    assert repr(turn) == "DraftTurn(2 of 3 sequences, 3 wanted of each at most)"
