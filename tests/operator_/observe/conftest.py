"""A book of what gateways tell."""

from __future__ import annotations

import pytest

from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.testing.gateways import FakeGateways
from tests.operator_.observe.activity_kit import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def gateways(clock):
    return FakeGateways(clock, found={"a:1"})


@pytest.fixture
def book(clock):
    return ActivityBook(clock)
