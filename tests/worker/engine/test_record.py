"""What is told of the tokens of a pass: log-probabilities of each up to the one that ends the request, or none."""

import pytest
from msgspec.structs import replace

from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.engine.batch import SampledToken
from dormouse_worker.engine.record import record
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def record_run(tokens, *, logprobs=True, max_tokens=9):
    told = [TokenLogprobs(-float(token), [token], [-float(token)]) if logprobs else None for token in tokens]
    request = Request("r", [1, 2, 3], make_sampling(max_tokens=max_tokens), arrival_s=0.0, num_promised_tokens=1)
    run = [SampledToken("r", token, row) for token, row in zip(tokens, told, strict=True)]
    return record(request, run, max_model_len=32), told


@pytest.mark.parametrize("tokens", [[5], [5, 6, 7]])
def test_each_token_has_its_log_probabilities_where_they_are_asked_for(tokens):
    progress, told = record_run(tokens)
    assert progress.logprobs == told
    assert record_run(tokens, logprobs=False)[0].logprobs is None


def test_behind_the_token_that_ends_the_request_nothing_is_told():
    progress, told = record_run([5, 6, 7], max_tokens=2)
    assert (progress.token_ids, progress.logprobs, progress.finish_reason) == ([5, 6], told[:2], "length")
    assert progress.request.num_computed_tokens == 1, "one draft was right, and counts"


@pytest.mark.parametrize("forced", [(), (8,)])
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_grammar_expects_next_is_told_by_the_last_token(count, forced):
    request = Request("r", [1, 2, 3], make_sampling(max_tokens=9), arrival_s=0.0, num_promised_tokens=1)
    run = [SampledToken("r", 5 + i, expected=(20 + i,)) for i in range(count)]
    run[-1] = replace(run[-1], forced=forced)
    record(request, run, max_model_len=32)
    assert request.expected_token_ids == (19 + count,)
