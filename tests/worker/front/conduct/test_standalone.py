"""A worker without an operator."""

from __future__ import annotations

import pytest

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import CommandRequest, State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.conduct.standalone import invitation
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script


async def test_it_allocates_what_it_reported_and_serves_and_says_so_once(open_house, capsys):
    time = VirtualTime()
    seams = Seams(clock=time, sleep=time.sleep)
    async with open_house(standalone=True, ready=False, seams=seams, max_engine_restarts=1) as house:
        await house.until_state(State.READY)
        assert CommandRequest(1, InitializeCache(100, 2)) in house.engine.engine.received
        assert (await house.collect("hi"))[-1].finish_reason
        house.engine.die(-9)
        await time.until_nap(0.0)
        time.advance(0.0)
        await house.until_state(State.READY)
        assert (await house.collect("hi"))[-1].finish_reason
    shown = capsys.readouterr().out
    assert shown.count("tiny is ready") == 1
    assert f"127.0.0.1:{house.ports.inference}" in shown


@pytest.mark.parametrize(
    "script",
    [
        Script(failure=("InsufficientMemory", "no block fits")),
        Script(refusals={"initialize_cache": ("InsufficientMemory", "no block fits")}),
    ],
)
async def test_what_an_operator_would_read_in_the_status_ends_it_with_one_and_is_said(open_house, capsys, script):
    async with open_house(script, standalone=True, ready=False) as house:
        assert await house.running == 1
    assert "no block fits" in capsys.readouterr().err


async def test_a_model_that_is_not_there_ends_it(open_house, tmp_path, capsys):
    async with open_house(standalone=True, ready=False, path=tmp_path / "nowhere") as house:
        assert await house.running == 1
    assert "cannot serve: ModelNotFound" in capsys.readouterr().err


@pytest.mark.parametrize(("can_chat", "line"), [(True, "dormouse chat --model 'm' "), (False, "dormouse generate ")])
def test_the_line_to_try_fits_the_model_and_the_address(can_chat, line):
    words = invitation("m", "[::]", 50051, 8080, can_chat=can_chat)
    assert line in words
    assert "--address localhost:50051" in words
    assert "localhost:50051 dormouse.v1.Inference/Generate" in words
