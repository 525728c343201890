"""A seal on a pod tells that an operator made it, and nothing else does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.seals import SPARE, Seals

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEALS = Seals(("new seed", "former seed"))


def test_a_seal_fits_the_pod_that_it_was_made_for_also_after_a_rotation():
    for seals in (SEALS, Seals(("former seed",))):
        assert SEALS.fits(seals.make("uid", "pod", NOW), "uid", "pod", NOW)
    assert not SEALS.fits(Seals(("forgotten",)).make("uid", "pod", NOW), "uid", "pod", NOW)
    assert repr(SEALS) == "Seals(2 keys)"


@pytest.mark.parametrize(
    ("uid", "pod", "created", "fits"),
    [
        ("uid", "pod", NOW + SPARE, True),
        ("uid", "pod", NOW - SPARE, True),
        ("uid", "pod", NOW + SPARE + timedelta(seconds=1), False),
        ("uid", "pod", NOW - SPARE - timedelta(seconds=1), False),
        ("uid", "pod", None, False),
        ("other", "pod", NOW, False),
        ("uid", "other", NOW, False),
    ],
)
def test_it_fits_no_other_pod_and_none_that_was_created_at_another_time(uid, pod, created, fits):
    assert SEALS.fits(SEALS.make("uid", "pod", NOW), uid, pod, created) is fits


def test_its_time_can_not_be_changed():
    seconds, _, signature = SEALS.make("uid", "pod", NOW).partition(";")
    later = NOW + timedelta(days=1)
    assert not SEALS.fits(f"{int(seconds) + 86_400};{signature}", "uid", "pod", later)


@given(st.text())
def test_no_text_raises_or_fits(text):
    assert not SEALS.fits(text, "uid", "pod", NOW)
    assert not SEALS.fits(f"{int(NOW.timestamp())};{text}", "uid", "pod", NOW)
