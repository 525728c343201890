"""The simulation of adapters on workers: who routes by adapter finds more of them in slots."""

from __future__ import annotations

import random

from bench.adapter_routing import GOAL, NUM_SLOTS, AtRandom, Slots, hit_rate
from dormouse_gateway.routing.built_in import PrefixAffinity


def test_slots_keep_what_was_used_last():
    slots = Slots()
    assert [slots.take(adapter) for adapter in [*range(NUM_SLOTS), 0, NUM_SLOTS, 1, 0]] == [
        *[False] * NUM_SLOTS,
        *(True, False, False, True),
    ]


def test_more_requests_find_their_adapter_than_at_random():
    ours, other = (hit_rate(each, seed=5, num_requests=3000) for each in (PrefixAffinity(), AtRandom(random.Random(5))))
    assert ours >= GOAL * other
