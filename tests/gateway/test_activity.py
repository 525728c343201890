"""What is counted per deployment, and who hears of a change."""

import asyncio

import pytest

from dormouse_gateway.activity import ActivityLog, WorkerLoad
from dormouse_kube.reflector import ObjectKey

TINY = ObjectKey("default", "tiny")
POD, OTHER_POD = ObjectKey("default", "tiny-0"), ObjectKey("default", "tiny-1")


class Clock:
    """Time that is told."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    made = ActivityLog(clock)
    made.add(TINY)
    return made


def taken(changes, most=10):
    return changes.take(most)[0]


def test_a_deployment_without_a_request_has_none_since_it_is_known(log, clock):
    clock.now_s = 200.0
    log.add(TINY)
    activity = log.activity(TINY)
    assert (activity.last_request_s, activity.known_since_s, activity.in_flight, activity.held) == (None, 100.0, 0, 0)
    assert log.activity(ObjectKey("default", "nobody")) is None


def test_a_request_counts_from_its_arrival_to_its_end_however_it_ends(log, clock):
    clock.now_s = 110.0
    counted = log.request(TINY)
    counted.__enter__()
    assert (log.activity(TINY).in_flight, log.activity(TINY).last_request_s) == (1, 110.0)
    assert repr(log) == "ActivityLog(1 deployments, in flight: {'tiny': 1}, 0 readers)"
    clock.now_s = 130.0
    error = ZeroDivisionError()
    assert not counted.__exit__(type(error), error, None)
    assert (log.activity(TINY).in_flight, log.activity(TINY).last_request_s) == (0, 130.0)


def test_a_request_that_outlives_its_deployment_is_not_counted_for_the_next_of_its_name(log):
    with log.reader() as changes:
        with log.request(TINY):
            log.forget(TINY)
            log.add(TINY)
            assert log.activity(TINY).in_flight == 0
            assert taken(changes) == [TINY]
        assert log.activity(TINY).in_flight == 0
        assert taken(changes) == []


def test_the_mean_is_over_workers_that_are_ready(log):
    log.note_load(TINY, POD, WorkerLoad(3, 1, 0.5, is_ready=True))
    log.note_load(TINY, OTHER_POD, WorkerLoad(1, 0, 0.25, is_ready=True))
    activity = log.activity(TINY)
    assert (activity.awake_workers, activity.running, activity.waiting) == (2, 4, 1)
    assert activity.mean_kv_cache_usage == pytest.approx(0.38)  # to a hundredth
    log.note_load(TINY, OTHER_POD, WorkerLoad(1, 0, 0.25, is_ready=False))
    assert (log.activity(TINY).awake_workers, log.activity(TINY).mean_kv_cache_usage) == (1, 0.5)
    log.note_load(TINY, POD, None)
    assert (log.activity(TINY).awake_workers, log.activity(TINY).mean_kv_cache_usage) == (0, 0.0)


def test_the_load_of_a_worker_of_nobody_is_left_out(log):
    log.note_load(ObjectKey("default", "nobody"), POD, WorkerLoad(3, 1, 0.5, is_ready=True))
    assert log.activity(ObjectKey("default", "nobody")) is None


def test_a_reader_hears_of_all_deployments_and_then_of_changes(log):
    with log.reader() as changes:
        assert changes.take(10) == ([TINY], True)
        assert changes.take(10) == ([], True)
        with log.request(TINY):
            assert taken(changes) == [TINY]
        assert taken(changes) == [TINY]
        log.note_load(TINY, POD, WorkerLoad(0, 0, 0.5, is_ready=True))
        assert taken(changes) == [TINY]
        log.note_load(TINY, POD, WorkerLoad(0, 0, 0.5001, is_ready=True))
        assert taken(changes) == [], "less than a hundredth is no change"
        log.forget(TINY)
        assert taken(changes) == [TINY]
        log.forget(TINY)
        assert taken(changes) == []


def test_many_changes_are_taken_in_parts(log):
    for name in "abc":
        log.add(ObjectKey("default", name))
    with log.reader() as changes:
        assert changes.take(3) == ([ObjectKey("default", name) for name in "abc"], False)
        assert changes.take(3) == ([TINY], True)


async def test_a_reader_waits_for_a_change(log):
    with log.reader() as changes:
        changes.take(10)
        waiting = asyncio.create_task(changes.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        with log.request(TINY):
            await waiting
    with log.request(TINY):
        assert changes.take(10) == ([TINY], True), "nothing came after the reader left"
