"""The streams of all gateways: who is listened to, lost, tried again and missed no more."""

from __future__ import annotations

from dormouse_operator.observe.activity import FIND_S, ActivityWatch
from tests.operator_.observe.activity_kit import TINY, calm, listening


async def test_every_gateway_that_is_found_is_listened_to(gateways, book, clock):
    gateways.found.add("b:1")
    async with listening(gateways, book, clock):
        assert gateways.listeners.keys() == {"a:1", "b:1"}
        gateways.tell("a:1", TINY, in_flight=1)
        await calm()
        assert not book.is_known
        gateways.tell("b:1", TINY, in_flight=1)
        await calm()
        assert book[TINY].in_flight == 2
    assert gateways.listeners == {}


async def test_a_new_gateway_is_found_and_until_it_told_nothing_is_known(gateways, book, clock):
    async with listening(gateways, book, clock):
        gateways.tell("a:1", TINY)
        await calm()
        assert book.is_known
        assert clock.naps == [FIND_S]
        gateways.found.add("b:1")
        await clock.pass_by()
        assert not book.is_known
        gateways.tell("b:1", TINY)
        await calm()
        assert book.is_known


async def test_a_lost_gateway_makes_everything_unknown_until_it_is_back_with_all_it_knows(gateways, book, clock):
    async with listening(gateways, book, clock):
        gateways.tell("a:1", TINY)
        await calm()
        gateways.break_off("a:1")
        await calm()
        assert TINY not in book
        await clock.pass_by()
        assert TINY not in book, "it has told nothing yet"
        gateways.tell("a:1")
        await calm()
        assert book.is_known
        assert TINY not in book, "what it said before its end counts no more"
        gateways.tell("a:1", TINY)
        await calm()
        assert TINY in book


async def test_a_gateway_that_refuses_is_tried_again_with_growing_pauses(gateways, book, clock):
    gateways.refuses.add("a:1")
    async with listening(gateways, book, clock):
        for _ in range(8):
            await clock.pass_by()
        pauses = [nap for nap in clock.naps if nap != FIND_S]
        assert pauses[0] < 0.3
        assert 2.0 < max(pauses) <= 5.0
        gateways.refuses.clear()
        await clock.pass_by()
        gateways.tell("a:1", TINY)
        await calm()
        assert TINY in book


async def test_a_gateway_that_is_gone_is_missed_no_more(gateways, book, clock):
    gateways.found.add("b:1")
    async with listening(gateways, book, clock):
        gateways.tell("a:1", TINY)
        gateways.tell("b:1", TINY, in_flight=1)
        await calm()
        gateways.found.remove("b:1")
        await clock.pass_by()
        assert book[TINY].in_flight == 1, "it ends its requests, and tells"
        gateways.break_off("b:1")
        await calm()
        assert TINY not in book
        await clock.pass_by()
        assert book[TINY].in_flight == 0


async def test_while_the_name_does_not_resolve_nobody_is_dropped(gateways, book, clock, caplog):
    async with listening(gateways, book, clock):
        gateways.tell("a:1", TINY)
        await calm()
        gateways.is_lost = True
        await clock.pass_by()
        assert TINY in book
        gateways.break_off("a:1")
        gateways.refuses.add("a:1")
        await calm()
        await clock.pass_by()
        assert book.addresses == {"a:1"}
        assert not book.is_known
        await clock.pass_by()
    assert caplog.text.count("no gateway is found under gateways") == 1, "what stays as it is is told once"


async def test_the_parts_say_what_they_know(gateways, book, clock):
    watch = ActivityWatch(gateways, book, sleep=clock.sleep)
    assert repr(watch) == "ActivityWatch(ActivityBook({}))"


async def test_a_mistake_of_ours_in_one_stream_is_logged_and_the_stream_begun_again(gateways, book, clock, caplog):
    async with listening(gateways, book, clock):
        gateways.break_off("a:1", ZeroDivisionError("a bug"))
        await calm()
        assert "a bug" in caplog.text
        await clock.pass_by()
        gateways.tell("a:1", TINY)
        await calm()
        assert TINY in book
