"""When the Python clients ask again: how long they wait, and when they do not."""

from __future__ import annotations

import random

import grpc
import pytest

from dormouse_api import client as api
from dormouse_api.client.errors import NotAvailable, Overloaded


def error(kind, seconds=None):
    return kind("x", code=grpc.StatusCode.UNAVAILABLE, retry_after_s=seconds)


@pytest.mark.parametrize(("attempt", "least"), [(1, 0.5), (2, 1.0), (3, 2.0)])
def test_a_full_server_that_gives_no_time_is_asked_ever_later(attempt, least):
    delay = api.RetryPolicy().delay_s(error(Overloaded), attempt=attempt, left_s=None, rng=random.Random(1))
    assert least <= delay <= least * 1.1


def test_a_time_beyond_the_policys_is_not_waited_for():
    policy = api.RetryPolicy(max_delay_s=3.0)
    assert policy.delay_s(error(NotAvailable, 3.1), attempt=1, left_s=None, rng=random.Random(1)) is None
    assert policy.delay_s(error(NotAvailable, 3.0), attempt=1, left_s=None, rng=random.Random(1)) >= 3.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"max_attempts": 0}, "max_attempts is 0; the least is 1"), ({"first_delay_s": 0.0}, "first_delay_s is 0.0")],
)
def test_a_policy_that_can_not_be_names_its_field(fields, words):
    with pytest.raises(ValueError, match=words):
        api.RetryPolicy(**fields)
