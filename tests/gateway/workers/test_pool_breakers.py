"""Who gets nothing for a while because requests ended badly there, and who is tried again."""

from dormouse_gateway.routing.breaker import State, Verdict
from dormouse_gateway.testing.workers import endpoint
from tests.gateway.pools import TINY, pick, pool_of, told, tried


def fail(pool, verdict=Verdict.REFUSED, **how):
    """Have a request end like this; return where it was."""
    ticket = pool.acquire(TINY, need_ready=True, **how)
    ticket.verdict = verdict
    pool.release(ticket)
    return ticket.endpoint.pod.name


def timed_pool(*endpoints):
    made = pool_of(*endpoints)
    made.clock = Clock()
    return made


class Clock:
    """A clock that stands still."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_worker_that_refused_gets_nothing_for_a_pause_then_one_request_and_all_again_once_that_one_begins():
    pool = timed_pool(endpoint("a"))
    pool.tell(endpoint("a"), told())
    assert fail(pool) == "a"
    assert (pick(pool), pool.is_ready(TINY), pool.probe_in_s(TINY)) == (None, True, 0.5)
    assert "0 outstanding of 1, breaker open" in repr(pool)
    pool.clock.now_s = 0.5
    assert pool.breakers(TINY) == [(endpoint("a"), State.HALF_OPEN)]
    assert pool.probe_in_s(TINY) is None
    probe = pool.acquire(TINY, need_ready=True)
    assert pick(pool) is None, "one at a time"
    assert probe.advance()
    assert (probe.advance(), pick(pool), pool.breakers(TINY)[0][1]) == (False, "a", State.CLOSED)


def test_a_probe_whose_client_goes_makes_room_for_the_next():
    pool = timed_pool(endpoint("a"))
    pool.tell(endpoint("a"), told())
    fail(pool)
    pool.clock.now_s = 0.5
    assert fail(pool, Verdict.NOTHING) == "a"
    assert fail(pool, Verdict.REFUSED) == "a"
    assert (pick(pool), pool.probe_in_s(TINY)) == (None, 1.0), "the second pause in a row"


def test_a_worker_that_refused_and_can_not_be_heard_gets_nothing_for_long():
    pool = timed_pool(endpoint("a"))
    fail(pool)
    pool.clock.now_s = 9.9
    assert pick(pool) is None
    pool.clock.now_s = 10.0
    assert pick(pool) == "a"


def test_a_worker_that_says_anew_that_it_is_ready_is_trusted_at_once():
    pool = timed_pool(endpoint("a"))
    pool.tell(endpoint("a"), told())
    fail(pool)
    pool.tell(endpoint("a"), told(running=1))
    assert pick(pool) is None
    pool.tell(endpoint("a"), told(ready=False))
    pool.tell(endpoint("a"), told())
    assert pick(pool) == "a"


def test_an_open_breaker_leaves_out_its_own_worker_only():
    pool = timed_pool(endpoint("a"), endpoint("b"))
    assert fail(pool) == "a"
    assert [pick(pool) for _ in range(3)] == ["b"] * 3
    assert (pool.has_peer(endpoint("b")), pool.has_peer(endpoint("a"))) == (False, True)


def test_failures_count_and_what_the_request_brought_on_itself_does_not():
    pool = timed_pool(endpoint("a"))
    for verdict in [Verdict.NOTHING] * 5 + [Verdict.FAILED] * 2 + [Verdict.GOOD] + [Verdict.FAILED] * 3:
        assert fail(pool, verdict) == "a"
    assert pick(pool) is None


def test_a_stream_that_lost_its_worker_takes_a_doubtful_one_only_where_there_is_no_other():
    pool = timed_pool(endpoint("a"), endpoint("b"))
    fail(pool, tried=tried(pool, "b"))
    pool.clock.now_s = 10.0
    like = endpoint("gone")
    assert [pick(pool, like=like) for _ in range(3)] == ["b"] * 3, "and probes no half open one"
    fail(pool, tried=tried(pool, "a"))
    assert pick(pool, like=like, tried=tried(pool, "a")) == "b", "rather an open one than to end"
    pool.put(endpoint("b", ready=False))
    assert pick(pool, like=like, tried=tried(pool, "a")) is None


def test_who_needs_no_ready_worker_gets_one_that_refused_rather_than_none():
    pool = timed_pool(endpoint("a"))
    fail(pool)
    assert pick(pool, need_ready=False) == "a"
    assert pool.breakers(TINY)[0][1] is State.OPEN
