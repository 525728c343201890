"""Probes: answered whatever the gateway's own event loop does, and told when that does not turn any more."""

import asyncio
import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from dormouse_gateway.http import STALL_S, HttpDoor, Pulse


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def blocking_get(port, path):
    """Ask, and give the loop that this runs in no turn meanwhile."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=90) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def port(clock):
    door = HttpDoor(metrics=lambda: b"x 1\n", is_ready=lambda: True, pulse=Pulse(clock))
    yield await door.start("127.0.0.1", 0)
    await door.stop()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_probe_is_answered_while_the_gateways_loop_is_busy(port, path):
    assert blocking_get(port, path) == (HTTPStatus.OK, "ok\n")


async def test_a_loop_that_does_not_turn_is_told_until_it_turns_again(port, clock):
    clock.now_s += STALL_S
    assert blocking_get(port, "/healthz")[0] == HTTPStatus.OK
    clock.now_s += 1
    status, words = blocking_get(port, "/healthz")
    assert (status, words) == (HTTPStatus.SERVICE_UNAVAILABLE, "the event loop has not turned for 11 s\n")
    while (await asyncio.to_thread(blocking_get, port, "/healthz"))[0] != HTTPStatus.OK:
        pass  # the pulse beats when the loop turns


async def test_metrics_are_read_in_the_gateways_own_loop():
    read_in = []

    def metrics():
        read_in.append(asyncio.get_running_loop())
        return b"x 1\n"

    door = HttpDoor(metrics=metrics, is_ready=lambda: False, pulse=Pulse())
    port = await door.start("127.0.0.1", 0)
    assert await asyncio.to_thread(blocking_get, port, "/metrics") == (HTTPStatus.OK, "x 1\n")
    assert read_in == [asyncio.get_running_loop()]
    assert (await asyncio.to_thread(blocking_get, port, "/readyz"))[0] == HTTPStatus.SERVICE_UNAVAILABLE
    await door.stop()


async def test_a_port_that_is_taken_is_an_os_error(port):
    door = HttpDoor(metrics=lambda: b"", is_ready=lambda: True, pulse=Pulse())
    with pytest.raises(OSError, match="in use"):
        await door.start("127.0.0.1", port)
    await door.stop()
