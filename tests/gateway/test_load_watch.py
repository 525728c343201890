"""Whose load is followed, and what becomes of it: over real sockets."""

import asyncio

import pytest

from dormouse_gateway.testing.workers import NAMESPACE, infd, pod, set_ready
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey

TINY = ObjectKey(NAMESPACE, "tiny")


def activity(house):
    return house.gateway.router.activity.activity(TINY)


def set_phase(kube, phase):
    kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj.update(status={"phase": phase}))


async def test_the_load_of_every_awake_worker_is_known(house, workers):
    workers[0].tell_load(running_requests=3, waiting_requests=2, kv_cache_usage=0.5)
    workers[1].tell_load(running_requests=1, kv_cache_usage=0.25)
    await house.add("tiny", workers)
    await house.until(lambda: activity(house).awake_workers == 2)
    assert (activity(house).running, activity(house).waiting) == (4, 2)
    assert activity(house).mean_kv_cache_usage == pytest.approx(0.38)
    workers[1].tell_load(kv_cache_usage=1.0)
    await house.until(lambda: activity(house).mean_kv_cache_usage == 0.75)
    assert repr(house.gateway.loads) == "LoadWatch(default/tiny-w0, default/tiny-w1)"


async def test_one_worker_has_one_stream_whatever_is_told_of_it(house, kube, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers == 1)
    for phase in ("Active", "Degraded", "Active"):
        set_phase(kube, phase)
        await house.until(lambda phase=phase: house.gateway.router.catalogue.get(TINY).phase == phase)
    assert workers[0].watchers == 1


async def test_a_worker_that_drains_or_is_not_ready_counts_for_nothing(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: activity(house).awake_workers == 1)
    workers[0].tell_load(draining=True, ready=False, running_requests=3)
    await house.until(lambda: activity(house).awake_workers == 0)
    assert activity(house).running == 0


async def test_a_worker_that_wakes_is_followed_before_its_pod_is_ready_and_one_asleep_is_not(house, kube, workers):
    kube.put(INFERENCE_DEPLOYMENTS, infd("tiny") | {"status": {"phase": "Asleep"}})
    kube.put(PODS, pod("tiny-w0", "tiny", workers[0].address, ready=False))
    await house.until(lambda: house.gateway.router.pool.endpoints_of(TINY))
    assert repr(house.gateway.loads) == "LoadWatch()"
    workers[0].tell_load(ready=False)
    set_phase(kube, "Waking")
    await house.until(lambda: workers[0].watchers == 1)
    workers[0].tell_load(ready=True)
    await house.until(lambda: activity(house).awake_workers == 1)
    assert not house.gateway.router.pool.endpoint_of(ObjectKey(NAMESPACE, "tiny-w0")).ready
    workers[0].tell_load(ready=False)
    await house.until(lambda: activity(house).awake_workers == 0)
    set_phase(kube, "Asleep")
    await house.until(lambda: workers[0].watchers == 0)
    assert activity(house).awake_workers == 0


async def test_a_worker_whose_pod_is_ready_is_followed_whatever_the_phase_is(house, kube, workers):
    await house.add("tiny", workers[:1], ready=False)
    set_phase(kube, "Asleep")
    await house.until(lambda: workers[0].watchers == 0)
    workers[0].tell_load(ready=True)
    set_ready(kube, "tiny-w0", ready=True)
    await house.until(lambda: activity(house).awake_workers == 1)


@pytest.mark.parametrize("gone", ["pod", "deployment"])
async def test_a_worker_that_is_gone_is_followed_no_more(house, kube, workers, gone):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers == 1)
    if gone == "pod":
        await kube.delete(PODS, NAMESPACE, "tiny-w0")
        await house.until(lambda: activity(house).awake_workers == 0)
    else:
        await kube.delete(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
    await house.until(lambda: workers[0].watchers == 0)
    assert repr(house.gateway.loads) == "LoadWatch()"


async def test_a_stream_that_breaks_is_opened_again_and_until_then_the_worker_counts_for_nothing(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: activity(house).awake_workers == 1)
    await workers[0].stop()
    await house.until(lambda: activity(house).awake_workers == 0)
    await workers[0].start()
    await house.until(lambda: activity(house).awake_workers == 1)


async def test_a_pod_with_another_address_is_followed_there(house, kube, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers == 1)
    kube.put(PODS, pod("tiny-w0", "tiny", workers[1].address))
    await house.until(lambda: (workers[0].watchers, workers[1].watchers) == (0, 1))


async def test_a_worker_says_which_model_files_it_read_whenever_it_opens_anew(house, workers):
    def digest():
        return house.gateway.router.pool.endpoint_of(ObjectKey(NAMESPACE, "tiny-w0")).model_digest

    workers[0].digest = ""
    await house.add("tiny", workers[:1])
    await house.until(lambda: activity(house).awake_workers == 1)
    workers[0].digest = "first"
    workers[0].tell_load(running_requests=1)
    await house.until(lambda: digest() == "first")
    assert workers[0].watchers == 1, "that it did not answer costs no stream"
    workers[0].digest = "second"
    workers[0].tell_load(ready=False)
    await house.until(lambda: activity(house).awake_workers == 0)
    workers[0].tell_load()
    await house.until(lambda: digest() == "second")


async def test_a_worker_that_is_heard_again_only_once_it_serves_says_anew_which_files_it_read(house, workers):
    """A container that starts anew in its pod has the same address."""

    def digest():
        return house.gateway.router.pool.endpoint_of(ObjectKey(NAMESPACE, "tiny-w0")).model_digest

    workers[0].digest = "first"
    await house.add("tiny", workers[:1])
    await house.until(lambda: digest() == "first")
    await workers[0].stop()
    workers[0].digest = "second"
    await workers[0].start()
    await house.until(lambda: digest() == "second")


async def test_a_mistake_while_a_load_is_taken_in_costs_its_stream_a_moment_and_not_the_worker(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: activity(house).awake_workers == 1)
    review, mistakes = house.gateway.router.on_change, ["as it is told", "as it is lost"]

    def blunder(key):
        if mistakes and asyncio.current_task().get_name().startswith("load of"):
            raise RuntimeError(mistakes.pop(0))
        review(key)

    house.gateway.router.on_change = blunder
    workers[0].tell_load(running_requests=3)
    await house.until(lambda: not mistakes)
    workers[0].tell_load(running_requests=4)
    await house.until(lambda: activity(house).running == 4)
