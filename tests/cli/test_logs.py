"""`dormouse logs`: one stream of all pods, in the order of the times."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from dormouse_cli.cluster import LogQuery
from dormouse_cli.logs import followed, merged
from dormouse_kube.api import PODS
from dormouse_kube.errors import Forbidden
from tests.cli import kit
from tests.waiting import until


@pytest.fixture
def two():
    """Two pods that wrote in turns."""
    fake = kit.cluster(kit.deployment(), pods=(kit.pod(), kit.pod(replica=1)))
    fake.lines = {
        "tiny-fa477b28-0": ["2026-11-21T12:00:01Z first", "2026-11-21T12:00:03Z third"],
        "tiny-fa477b28-1": ["2026-11-21T12:00:02Z second"],
    }
    return fake


def test_lines_of_all_pods_are_merged_by_time_and_begin_with_their_pod(dormouse, two):
    result = dormouse(two, "logs", "tiny")
    assert (result.exit_code, result.stdout) == (
        0,
        "tiny-fa477b28-0 | first\ntiny-fa477b28-1 | second\ntiny-fa477b28-0 | third\n",
    )


def test_times_are_shown_on_request(dormouse, two):
    first = dormouse(two, "logs", "tiny", "--timestamps").stdout.splitlines()[0]
    assert first == "tiny-fa477b28-0 | 2026-11-21T12:00:01Z first"


def test_what_is_asked_for_reaches_the_server(dormouse, two):
    dormouse(two, "logs", "tiny", "--tail", "7", "--since", "60", "--previous")
    assert two.queries[0] == LogQuery("worker", tail_lines=7, since_s=60, previous=True)


def test_a_pod_without_a_log_is_said_and_the_others_are_shown(dormouse, two):
    del two.lines["tiny-fa477b28-1"]
    result = dormouse(two, "logs", "tiny")
    assert "first" in result.stdout
    assert 'tiny-fa477b28-1: pods "tiny-fa477b28-1" not found' in result.stderr


def test_without_a_pod_status_is_pointed_to(dormouse):
    result = dormouse(kit.cluster(kit.deployment()), "logs", "tiny")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: tiny has no pod; what became of it tells dormouse status tiny\n",
    )


def test_a_missing_right_names_verb_and_resource(dormouse, two):
    words = 'pods "x" is forbidden: User "x" cannot get resource "pods/log" in API group ""'
    two.fail("list", PODS, Forbidden(words, status=403))
    result = dormouse(two, "logs", "tiny")
    assert (result.exit_code, 'cannot get resource "pods/log"' in result.stderr) == (4, True)


def test_lines_of_the_same_time_stay_in_the_order_of_their_pod():
    lines = merged([("a", ["1 x", "1 y"]), ("b", ["1 z"])])
    assert list(lines) == [("a", "1 x"), ("a", "1 y"), ("b", "1 z")]


async def test_followed_pods_that_come_later_are_read_too(two):
    query = LogQuery("worker", follow=True)
    async with aclosing(followed(two, "default", "tiny", query, pause_s=0.0)) as stream:
        seen = {await anext(stream) for _ in range(3)}
        assert {line.split()[1] for _, line in seen} == {"first", "second", "third"}
        two.lines["tiny-fa477b28-2"] = ["2026-11-21T12:00:04Z fourth"]
        two.put(PODS, kit.pod(replica=2))
        async with asyncio.timeout(90):
            assert await anext(stream) == ("tiny-fa477b28-2", "2026-11-21T12:00:04Z fourth")


async def test_what_was_told_before_a_restart_is_not_told_again(two):
    del two.lines["tiny-fa477b28-1"]
    query = LogQuery("worker", follow=True)
    async with aclosing(followed(two, "default", "tiny", query, pause_s=0.0)) as stream:
        assert [(await anext(stream))[1].split()[1] for _ in range(2)] == ["first", "third"]
        await until(lambda: len(two.queries) > 5)  # read again and again
        two.lines["tiny-fa477b28-0"].append("2026-11-21T12:00:05Z fifth")
        async with asyncio.timeout(90):
            assert (await anext(stream))[1] == "2026-11-21T12:00:05Z fifth"
