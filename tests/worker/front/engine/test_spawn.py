"""Starting the engine's process, also one that does not live to hear its settings."""

import asyncio
import sys
from pathlib import Path

import pytest
import uvloop

from dormouse_worker.front.engine.spawn import SubprocessEngine, hand_over, subprocess_spawner


async def end_before_it_is_told() -> int:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "", stdin=pipe, stdout=pipe, stderr=pipe)
    await process.wait()
    hand_over(process, b"{}" * 10_000)
    return await SubprocessEngine(process).wait()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_engine_that_ended_before_it_was_told_its_settings_is_one_that_ended(run):
    assert run(end_before_it_is_told()) == 0


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_interpreter_that_is_not_there_is_named(run):
    spawn = subprocess_spawner(("/no/python", "-P"), {})(None)
    with pytest.raises(FileNotFoundError, match="'/no/python'"):
        run(spawn(Path("socket")))
