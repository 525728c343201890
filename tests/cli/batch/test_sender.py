"""What a request meets on its way: refusals, lost connections, and when it is given up."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_cli.batch.lines import NoReply, Reply
from dormouse_cli.batch.sender import connected
from dormouse_cli.cluster import Target
from dormouse_cli.errors import CommandFailed
from dormouse_cli.reach import Door, Way
from tests.cli.batch.server import CHAT


class Watch:
    """A clock that goes on by what is slept."""

    def __init__(self):
        self.now = 0.0
        self.slept = []

    def __call__(self):
        return self.now

    async def sleep(self, wait_s):
        self.slept.append(wait_s)
        self.now += wait_s


@pytest.fixture
def watch():
    return Watch()


def ask(server, watch, timeout_s=3600.0):
    """Ask once; return what came of it."""

    async def asked():
        way = Way(address=None, api_key=None, tls=False, tls_ca=None, target=Target(None, None, None))
        async with connected(way, Door(server, "tiny"), timeout_s=timeout_s, max_concurrency=1) as sender:
            sender.clock, sender.sleep = watch, watch.sleep
            return await sender.ask(CHAT, {"model": "tiny"})

    return asyncio.run(asked())


def test_who_is_told_to_come_later_comes_as_often_as_it_takes(server, watch):
    server.script = [(429, {"Retry-After": "7"}, b"{}"), (503, {}, b"{}")] * 5
    assert ask(server.address, watch) == Reply(200, "r", {"ok": True})
    assert watch.slept == [7, 2, 7, 8, 7, 32, 7, 60, 7, 60]


def test_until_the_time_is_over(server, watch):
    server.script = [(429, {"Retry-After": "30"}, b'{"error": 1}')] * 9
    assert ask(server.address, watch, timeout_s=100) == Reply(429, "r", {"error": 1})
    assert watch.slept == [30, 30, 30]


def test_what_fails_is_tried_five_times(server, watch):
    server.script = [(500, {}, b'{"error": 1}')] * 5
    assert ask(server.address, watch) == Reply(500, "r", {"error": 1})
    assert watch.slept == [1, 2, 4, 8]


def test_a_refusal_is_an_answer(server, watch):
    server.script = [(400, {}, b'{"error": 1}')]
    assert ask(server.address, watch) == Reply(400, "r", {"error": 1})
    assert watch.slept == []


def test_a_connection_that_is_lost_is_made_again(server, watch):
    server.script = [(0, {}, b""), (0, {}, b"")]
    assert ask(server.address, watch).is_done
    server.script = [(0, {}, b"")] * 5
    assert ask(server.address, watch).code == "connection_lost"


def test_what_is_no_json_is_told(server, watch):
    server.script = [(200, {}, b"<html>\xff")]
    assert ask(server.address, watch) == NoReply("unreadable", "status 200, and no JSON: <html>\ufffd")


def test_an_answer_that_takes_too_long_is_given_up(server, watch):
    server.stalls_from = 0
    assert ask(server.address, watch, timeout_s=0.05) == NoReply("timeout", "no answer within 0.05 s")


def test_nobody_ends_all(watch):
    with pytest.raises(CommandFailed, match=r"nothing answers at 127\.0\.0\.1:1"):
        ask("127.0.0.1:1", watch)
    assert watch.slept == [1, 2, 4, 8]
