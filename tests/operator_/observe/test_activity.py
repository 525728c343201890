"""What all gateways together know of a deployment, and when nothing is known."""

from __future__ import annotations

import pytest

from dormouse_operator.model import Activity, Key
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.gateways import Told
from tests.operator_.observe.activity_kit import OTHER, TINY


def take(book, address, fake, **reports):
    book.take(address, Told({Key("team", name): fake.report(**facts) for name, facts in reports.items()}, (), True))


def test_without_a_gateway_nothing_is_known(book):
    assert not book.is_known
    assert TINY not in book
    assert (len(book), list(book), repr(book)) == (0, [], "ActivityBook({})")


def test_requests_are_added_and_of_the_same_workers_the_gateway_that_hears_most_is_believed(book, gateways):
    take(book, "a:1", gateways, tiny={"in_flight": 2, "held": 1, "awake_workers": 1, "mean_kv_cache_usage": 0.9})
    seen = {"in_flight": 3, "awake_workers": 2, "running": 4, "waiting": 1, "mean_kv_cache_usage": 0.5}
    take(book, "b:1", gateways, tiny=seen)
    assert book[TINY] == Activity(
        in_flight=5, held=1, quiet_s=0.0, awake_workers=2, running=4, waiting=1, mean_kv_cache_usage=0.5
    )
    assert book[TINY].outstanding == 5


def test_quiet_is_since_the_last_request_at_any_gateway_and_at_most_since_it_is_known(book, gateways, clock):
    take(book, "a:1", gateways, tiny={"last_request_s": 900.0, "known_since_s": 100.0}, other={"known_since_s": 100.0})
    take(book, "b:1", gateways, tiny={"known_since_s": 950.0}, other={"known_since_s": 100.0, "last_request_s": 200.0})
    clock.now_s = 1060.0
    assert book[TINY].quiet_s == 110.0, "the second gateway would have seen one since 950 only"
    assert book[OTHER].quiet_s == 860.0


@pytest.mark.parametrize("busy", [{"in_flight": 1}, {"running": 1}, {"waiting": 1}])
def test_what_is_unfinished_is_not_quiet_whoever_sent_it(book, gateways, busy):
    take(book, "a:1", gateways, tiny={"last_request_s": 0.0, **busy})
    assert (book[TINY].quiet_s, book[TINY].outstanding) == (0.0, 1)


def test_one_gateway_that_is_not_heard_of_makes_everything_unknown(book, gateways):
    take(book, "a:1", gateways, tiny={})
    assert list(book) == [TINY]
    book.expect("b:1")
    assert (TINY in book, len(book), book.is_known) == (False, 0, False)
    assert repr(book) == "ActivityBook({'a:1': 'complete', 'b:1': 'lost'})"
    book.drop("b:1")
    assert TINY in book
    book.drop("b:1")


def test_a_gateway_that_has_not_told_of_all_makes_everything_unknown(book, gateways):
    book.take("a:1", Told({TINY: gateways.report()}, (), is_complete=False))
    assert TINY not in book
    book.take("a:1", Told({}, (), is_complete=True))
    assert TINY in book
    book.take("a:1", Told({}, (), is_complete=False))
    assert TINY in book, "what was told once is told"


def test_a_deployment_that_one_gateway_does_not_know_is_unknown_and_one_that_is_gone_is_gone(book, gateways):
    take(book, "a:1", gateways, tiny={}, other={})
    take(book, "b:1", gateways, tiny={})
    assert list(book) == [TINY]
    assert OTHER not in book
    book.take("a:1", Told({}, (TINY, Key("team", "nobody")), is_complete=True))
    assert TINY not in book


def test_who_is_wanted_at_one_gateway_is_told_at_once_also_while_another_is_not_heard_of(gateways, clock):
    told = []
    book = ActivityBook(clock, told.extend)
    take(book, "a:1", gateways, tiny={}, other={})
    book.expect("b:1")
    told.clear()
    assert book.wanted_ago_s(TINY) is None
    take(book, "a:1", gateways, tiny={"held": 1, "wanted_s": 1000.0})
    assert (told, book.wanted_ago_s(TINY), TINY in book) == ([TINY], 0.0, False)
    take(book, "a:1", gateways, tiny={"held": 2, "wanted_s": 1000.0})
    assert told == [TINY], "it is known by now"
    clock.now_s = 1030.0
    take(book, "a:1", gateways, tiny={"wanted_s": 1010.0})
    assert (told, book.wanted_ago_s(TINY)) == ([TINY], 20.0)


def test_who_was_wanted_while_nobody_listened_is_told(gateways, clock):
    told = []
    book = ActivityBook(clock, told.extend)
    book.expect("b:1")
    take(book, "a:1", gateways, tiny={"wanted_s": 990.0}, other={})
    assert (told, book.wanted_ago_s(TINY), book.wanted_ago_s(OTHER)) == ([TINY], 10.0, None)
    take(book, "a:1", gateways, tiny={"wanted_s": 990.1})
    assert told == [TINY], "the same, told again"
    take(book, "a:1", gateways, tiny={"wanted_s": 999.0})
    assert told == [TINY, TINY], "one came and went between two updates"


def test_news_are_what_comes_to_be_known_and_requests_that_come_to_be_held(clock, gateways):
    news = []
    book = ActivityBook(clock, lambda keys: news.append(sorted(keys)))
    both = {TINY: gateways.report(), OTHER: gateways.report()}
    book.expect("b:1")
    book.take("a:1", Told(both, (), is_complete=True))
    assert news == [], "one is not heard of"
    book.take("b:1", Told(both, (), is_complete=True))
    assert news == [[OTHER, TINY]]
    book.take("a:1", Told({TINY: gateways.report(in_flight=9)}, (), is_complete=False))
    assert len(news) == 1, "a load that comes and goes is none"
    book.take("a:1", Told({TINY: gateways.report(in_flight=9, held=1)}, (), is_complete=False))
    book.take("a:1", Told({TINY: gateways.report(in_flight=9, held=5)}, (), is_complete=False))
    assert news[1:] == [[TINY]]
    book.expect("b:1")
    book.drop("b:1")
    assert news[2:] == [[OTHER, TINY]]


def test_a_gateway_that_sees_a_canary_fail_is_heard_at_once_and_once_for_each_try(gateways, clock):
    news = []
    book = ActivityBook(clock, lambda keys: news.append(set(keys)))
    take(book, "a:1", gateways, tiny={})
    news.clear()
    take(book, "a:1", gateways, tiny={"canary_fault": "slow", "canary_try": "one"})
    take(book, "a:1", gateways, tiny={"canary_fault": "slow", "canary_try": "one", "in_flight": 1})
    take(book, "a:1", gateways, tiny={"canary_fault": "slow", "canary_try": "two"})
    assert news == [{TINY}, {TINY}]
    book.expect("b:1")
    assert book.canary_fault(TINY, "two") == "slow", "also while another gateway is not heard of"
    assert book.canary_fault(TINY, "one") == ""
    assert book.canary_fault(OTHER, "two") == ""
