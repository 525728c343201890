"""The request: its lengths, its tokens, its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.grammar import Grammar
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling


def make_request(prompt=(1, 2, 3), output=(), **sampling):
    return Request("r", list(prompt), make_sampling(**sampling), arrival_s=0.0, output_token_ids=list(output))


def test_lengths_count_prompt_output_and_what_is_pending():
    request = make_request(output=[4, 5])
    request.num_computed_tokens = 4
    assert (request.num_prompt_tokens, request.num_tokens, request.num_pending_tokens) == (3, 5, 1)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 3, [1, 2, 3]), (1, 2, [2]), (0, 5, [1, 2, 3, 4, 5]), (2, 4, [3, 4]), (3, 5, [4, 5]), (3, 4, [4]), (4, 5, [5])],
)
def test_token_ids_run_from_the_prompt_into_the_output(start, end, expected):
    assert make_request(output=[4, 5]).token_ids(start, end) == expected


@pytest.mark.parametrize(
    ("output", "sampling", "max_model_len", "reason"),
    [
        ([], {"max_tokens": 2}, 32, None),
        ([9], {"max_tokens": 2}, 32, None),
        ([9, 9], {"max_tokens": 2}, 32, "length"),
        ([7], {"stop_token_ids": (7,)}, 32, "stop"),
        ([7, 8], {"stop_token_ids": (7,)}, 32, None),
        ([7], {"stop_token_ids": (7,), "min_tokens": 1}, 32, None),
        ([8, 7], {"stop_token_ids": (7,), "min_tokens": 1}, 32, "stop"),
        ([8, 9], {"max_tokens": 9}, 5, "length"),
        ([8, 7], {"max_tokens": 2, "stop_token_ids": (7,)}, 5, "stop"),
    ],
)
def test_it_ends_at_a_stop_token_at_max_tokens_or_at_the_model_length(output, sampling, max_model_len, reason):
    assert make_request(output=output, **sampling).finish_reason(max_model_len) == reason


def test_an_empty_prompt_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match=r"^a request has at least one prompt token$"):
        make_request(prompt=())


def test_a_run_follows_what_is_known_and_nothing_else_that_is_promised():
    request = make_request(output=[4])
    request.advance(4, samples=True, num_drafts=1)
    request.keep_run([5, 6, 7], num_right=1)
    assert (request.output_token_ids, request.num_computed_tokens, request.num_pending_tokens) == ([4, 5, 6, 7], 5, 2)
    request.advance(7, samples=True)
    request.advance(8, samples=True)
    with pytest.raises(AssertionError, match=r"^a batch under way would be at another place$"):
        request.keep_run([8, 9], num_right=0)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(0, 4),
    st.sampled_from((None, (3,))),
    st.integers(4, 9),
)
def test_a_run_is_cut_where_its_tokens_one_by_one_would_complete_the_request(run, most, least, ends, max_model_len):
    bound_by = None if ends is None else Grammar("", ends)
    asked = {"max_tokens": most, "min_tokens": least, "stop_token_ids": (1, 2), "grammar": bound_by}
    count, why = make_request(output=[], **asked).cut(run, max_model_len)
    request, reason = make_request(output=[], **asked), None
    while reason is None and len(request.output_token_ids) < len(run):
        request.output_token_ids.append(run[len(request.output_token_ids)])
        reason = request.finish_reason(max_model_len)
    assert (count, why) == (len(request.output_token_ids), reason)
