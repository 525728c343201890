"""The next step of a slot as tests ask for it, and short names of what tenants do."""

from __future__ import annotations

from dormouse_operator.decide.pools.commands import Write
from dormouse_operator.decide.pools.switch import next_step
from dormouse_operator.model.pools import TenantState
from dormouse_operator.testing.nouns import NOW
from tests.operator_.decide.pools.nouns import POLICY, demands, tenants

ASLEEP, STANDBY, RISING, DRAINING = TenantState.ASLEEP, TenantState.STANDBY, TenantState.RISING, TenantState.DRAINING
SERVING, FAILED, SILENT, ABSENT = TenantState.SERVING, TenantState.FAILED, TenantState.SILENT, TenantState.ABSENT
GRANTED = {"grant_epoch": 5}


def step(slot, *there, asked=(), **fields):
    """Return the next step; what is written is of now, and one epoch later."""
    found = next_step(slot, tenants(*there), demands(*asked), POLICY, NOW, **fields)
    if isinstance(found, Write):
        assert (found.slot.since, found.slot.epoch) == (NOW, slot.epoch + 1)
    return found
