"""The figures that are made of replies."""

from __future__ import annotations

import pytest

from bench.contest import Rounds
from bench.replies import Reply, num_equal, num_tokens, tokens_per_s, tpot_ms, ttft_ms, wall_s

FAST = Reply([1, 2, 3], submitted_s=10.0, first_s=10.1, last_s=10.3)
SLOW = Reply([1, 2, 3, 4, 5], submitted_s=10.0, first_s=10.3, last_s=12.0)
SINGLE = Reply([9], submitted_s=10.5, first_s=11.0, last_s=11.0)


def test_throughput_counts_from_the_first_submission_to_the_last_token():
    assert num_tokens([FAST, SLOW, SINGLE]) == 9
    assert wall_s([FAST, SLOW, SINGLE]) == pytest.approx(2.0)
    assert tokens_per_s([FAST, SLOW, SINGLE]) == pytest.approx(4.5)


def test_the_time_to_the_first_token_is_the_median_request_s():
    assert ttft_ms([FAST, SLOW, SINGLE]) == pytest.approx(300)


def test_the_time_per_token_leaves_the_first_token_out():
    assert tpot_ms([FAST]) == pytest.approx(100)
    assert tpot_ms([FAST, SLOW, SINGLE]) == pytest.approx((100 + 425) / 2)


def test_replies_are_equal_when_all_their_tokens_are():
    other = Reply([1, 2, 4], 0.0, 0.0, 0.0)
    assert num_equal([FAST, SLOW], [Reply([1, 2, 3], 0.0, 0.0, 0.0), other]) == 1


def test_rounds_take_the_median_of_each_side_and_count_all_repetitions():
    rounds = Rounds(ours=([FAST], [SLOW], [FAST]), peer=([SLOW], [SLOW], [SINGLE]))
    assert rounds.medians(ttft_ms) == pytest.approx((100, 300))
    assert (rounds.num_equal, rounds.num_requests) == (1, 3)
