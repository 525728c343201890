"""When a certificate is renewed."""

from datetime import UTC, datetime, timedelta

import pytest

from dormouse_operator.decide.renewal import is_due, renew_at

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def test_a_third_of_the_time_is_left_for_outages():
    assert renew_at(BEGIN, BEGIN + DAY) == BEGIN + 16 * HOUR


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (BEGIN - HOUR, True),  # made by a clock that was ahead
        (BEGIN, False),
        (BEGIN + 15 * HOUR, False),
        (BEGIN + 16 * HOUR, True),
        (BEGIN + DAY, True),
        (BEGIN + 9 * DAY, True),
    ],
)
def test_it_is_due_outside_of_its_first_two_thirds(now, due):
    assert is_due(BEGIN, BEGIN + DAY, now) is due
