"""The scheduler and log-probabilities of prompts: rows with logits are as many as sequences may run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling
from tests.worker.engine.scheduler_kit import add, make_scheduler, step


def test_a_chunk_takes_the_rows_that_running_sequences_leave():
    scheduler = make_scheduler(tokens=16, seqs=4)
    add(scheduler, "a", 9, prompt_logprobs=0)
    add(scheduler, "b", 2)
    assert step(scheduler) == {"a": (0, 4, False)}
    assert step(scheduler) == {"a": (4, 8, False)}
    assert step(scheduler) == {"a": (8, 9, True), "b": (0, 2, True)}
    assert step(scheduler) == {"a": (9, 10, True), "b": (2, 3, True)}


def test_output_of_another_worker_needs_no_rows():
    scheduler = make_scheduler(tokens=16, seqs=2)
    request = Request("a", [1] * 4, make_sampling(prompt_logprobs=0, max_tokens=9), arrival_s=0.0)
    request.output_token_ids += [2] * 6
    scheduler.add(request)
    assert [step(scheduler)["a"][:2] for _ in range(3)] == [(0, 2), (2, 4), (4, 10)]


def test_every_running_sequence_keeps_a_row():
    scheduler = make_scheduler(tokens=16, seqs=4)
    add(scheduler, "a", 2)
    step(scheduler)
    add(scheduler, "b", 9, prompt_logprobs=0)
    assert step(scheduler) == {"a": (2, 3, True), "b": (0, 3, False)}


def fill(scheduler, names):
    """Let these sequences run that decode until the test ends."""
    for name in names:
        add(scheduler, name, 1, max_tokens=9999)
    step(scheduler)


def test_in_a_full_batch_every_fourth_pass_is_a_turn_of_prompts_that_are_asked_about():
    scheduler = make_scheduler(num_blocks=20, tokens=16, seqs=4, max_model_len=20)
    fill(scheduler, "abc")
    add(scheduler, "asks", 16, prompt_logprobs=0)
    spans = [step(scheduler) for _ in range(9)]
    assert [pass_["asks"][:2] for pass_ in spans] == [
        *[(0, 1), (1, 2), (2, 3), (3, 4)],
        *[(4, 7), (7, 8), (8, 9), (9, 10), (10, 13)],
    ]
    assert [set(pass_) for pass_ in spans[3:5]] == [{"a", "b", "c", "asks"}, {"a", "asks"}]


def test_rows_that_are_left_in_a_turn_admit_nobody():
    scheduler = make_scheduler(num_blocks=20, tokens=16, seqs=4, max_model_len=20)
    fill(scheduler, "abc")
    add(scheduler, "asks", 6, prompt_logprobs=0)
    add(scheduler, "waits", 1)
    assert [step(scheduler) for _ in range(5)][4] == {"a": (5, 6, True), "asks": (4, 6, True)}
    assert (scheduler.num_running, scheduler.num_waiting) == (4, 1)


def test_whoever_comes_just_before_a_turn_runs_after_it():
    scheduler = make_scheduler(num_blocks=30, tokens=16, seqs=8, max_model_len=20)
    fill(scheduler, "abcdef")
    add(scheduler, "asks", 12, prompt_logprobs=0, max_tokens=9)
    assert all(len(step(scheduler)) == 7 for _ in range(4))
    add(scheduler, "waits", 1)
    assert step(scheduler) == {"a": (5, 6, True), "asks": (8, 12, True)}, "though a row is left"
    assert step(scheduler)["waits"] == (0, 1, True)


def test_a_prompt_that_needs_no_row_but_its_last_gets_no_turn():
    scheduler = make_scheduler(num_blocks=20, tokens=16, seqs=4, max_model_len=20)
    fill(scheduler, "abc")
    add(scheduler, "asks", 1, prompt_logprobs=0, max_tokens=9)
    assert all(len(step(scheduler)) == 4 for _ in range(8))


@settings(deadline=None)  # a busy machine is no fault
@given(
    seqs=st.integers(8, 32),
    lengths=st.lists(st.integers(50, 200), min_size=1, max_size=3),
    max_tokens=st.integers(1, 3),
    urgent=st.booleans(),
)
def test_prompts_get_their_share_of_a_full_batch_and_nobody_else_stops(seqs, lengths, max_tokens, urgent):
    scheduler = make_scheduler(num_blocks=5000, block_size=8, tokens=128, seqs=seqs, max_model_len=2000)
    decoding = [f"decodes {n}" for n in range(seqs - len(lengths))]
    fill(scheduler, decoding)
    for n, length in enumerate(lengths):
        add(scheduler, f"asks {n}", length, prompt_logprobs=0, max_tokens=max_tokens, priority=-urgent)
    most_passes = 4 * (-(-sum(lengths) // (seqs - 1)) + len(lengths) + 1) + max_tokens
    for num_passes in range(1, most_passes + 2):
        if scheduler.num_running == len(decoding) and not scheduler.num_waiting:
            break
        step(scheduler)
        for name in decoding:
            assert len(scheduler.request(name).output_token_ids) >= num_passes - num_passes // 4
    assert num_passes <= most_passes
