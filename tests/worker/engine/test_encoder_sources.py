"""Prompts that an encoder reads: whole in one pass, known whole or not at all, whatever happens beside."""

import pytest
from msgspec.structs import replace

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.sides import joined, source_room
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.encoder_sources import why_no_source
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor
from tests.worker.engine.engine_kit import expected, finish

BLOCK_SIZE, MAX_TOKENS = 4, 6
OPENING = (1, 2)
LENGTHS = (1, 4, 5, 11, 12)


def source(length, first=3):
    return list(range(first, first + length))


def read(name, tokens, **sampling):
    """Return a message with a source of these tokens."""
    message = make_add(name, joined(tokens, OPENING, BLOCK_SIZE), **{"max_tokens": MAX_TOKENS, **sampling})
    return replace(message, num_source_tokens=len(tokens))


def make_engine(*, num_blocks=40, host_blocks=0, tokens=32, caches=True):
    report = make_report(num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=28)
    executor = FakeExecutor(report)
    settings = EngineSettings(model="m", max_num_seqs=4, max_num_batched_tokens=tokens, enable_prefix_caching=caches)
    counts = (num_blocks, host_blocks)
    return build_engine(settings, report, counts, executor, clock=ManualClock()), executor


def ask(engine, *messages):
    for message in messages:
        assert engine.add(message) is None
    return finish(engine, {message.request_id: [] for message in messages})


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("tokens", [12, 15, 32])
@pytest.mark.parametrize(("num_blocks", "host_blocks"), [(8, 0), (8, 8), (40, 0)])
def test_a_source_is_never_divided_whatever_happens_to_it(num_blocks, host_blocks, tokens, caches):
    engine, executor = make_engine(num_blocks=num_blocks, host_blocks=host_blocks, tokens=tokens, caches=caches)
    messages = [read(f"{length} {again}", source(length)) for again in range(2) for length in LENGTHS]
    assert ask(engine, *messages) == {
        message.request_id: expected(message.prompt_token_ids, MAX_TOKENS) for message in messages
    }
    ends = {message.request_id: source_room(message.num_source_tokens, BLOCK_SIZE) for message in messages}
    for batch in executor.batches:
        assert batch.num_tokens <= tokens
        for scheduled in batch.sequences:
            is_whole = scheduled.start == 0 and scheduled.end >= ends[scheduled.request_id]
            assert is_whole or scheduled.start >= ends[scheduled.request_id]
    assert all(new.num_source_tokens for batch in executor.batches for new in batch.new)


def num_known(engine, message):
    """Return how many tokens of a prompt were known."""
    assert engine.add(message) is None
    known = engine.step().outputs[0].cached_tokens
    finish(engine, {message.request_id: []})
    return known


def test_equal_sources_are_known_whole_and_others_not_at_all():
    engine, _ = make_engine()
    assert num_known(engine, read("a", source(11))) == 0
    assert num_known(engine, read("b", source(11))) == 11
    assert num_known(engine, read("c", source(8))) == 0, "its blocks are those of a, but each state depends on the end"
    assert num_known(engine, make_add("d", joined(source(11), OPENING, BLOCK_SIZE))) == 0, "no encoder reads it"
    assert num_known(engine, replace(read("e", source(11)), cache_salt="other")) == 0


def test_of_a_source_that_was_forgotten_in_part_nothing_is_known():
    engine, executor = make_engine(num_blocks=7)
    assert num_known(engine, read("a", source(11))) == 0
    ask(engine, read("b", source(12, 50)))
    assert num_known(engine, read("c", source(11))) == 0
    assert executor.batches[-MAX_TOKENS].sequences[0].start == 0


@pytest.mark.parametrize(
    ("num_source", "num_prompt", "sampling", "words"),
    [
        (0, 5, {}, None),
        (4, 5, {}, None),
        (-1, 5, {}, "num_source_tokens is -1, in blocks 0; allowed: from 1 on, below the prompt's 5"),
        (5, 8, {}, "num_source_tokens is 5, in blocks 8; allowed: from 1 on, below the prompt's 8"),
        (9, 13, {}, "the source takes 12 tokens of one pass; the limit is 8"),
        (4, 5, {"prompt_logprobs": 0}, "prompt_logprobs are not told of prompts that an encoder reads"),
    ],
)
def test_what_no_encoder_can_read_is_refused(num_source, num_prompt, sampling, words):
    message = replace(make_add("a", range(num_prompt), **sampling), num_source_tokens=num_source)
    why = why_no_source(message, BLOCK_SIZE, 8)
    assert why is None if words is None else words in why


def test_the_engine_asks():
    engine, _ = make_engine(tokens=8)
    assert engine.add(read("a", source(9))) == "the source takes 12 tokens of one pass; the limit is 8"
