"""The operator among many InferenceAdapters: all come to be loaded, with a few writes for each."""

from __future__ import annotations

from bench.adapter_offers import bring_up


async def test_all_are_loaded_and_few_writes_were_needed():
    seconds, writes = await bring_up(20)
    assert seconds > 0
    assert 20 * 2 <= writes <= 20 * 8, "a status and an Event at least; one for each step at most"
