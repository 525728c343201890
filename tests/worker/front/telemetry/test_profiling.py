"""StartProfile and StopProfile: under the named directory only, in the right state, fenced like every command."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_worker.common.commands import StartProfile
from dormouse_worker.front.telemetry.profiling import trace_directory
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode


def directories(house):
    """Return where the engine was told to write."""
    return [command.directory for command in house.engine.engine.commands if isinstance(command, StartProfile)]


class TestTraceDirectory:
    """What the request may name."""

    @pytest.mark.parametrize(("wanted", "below"), [("", ""), ("a", "a"), ("a/../b", "b"), ("a/b", "a/b")])
    def test_it_is_relative_to_the_workers_directory(self, tmp_path, wanted, below):
        assert trace_directory(str(tmp_path), wanted) == str(tmp_path.resolve() / below)

    def test_an_absolute_one_must_lie_under_it(self, tmp_path):
        assert trace_directory(str(tmp_path), f"{tmp_path}/a") == str(tmp_path.resolve() / "a")

    @pytest.mark.parametrize("wanted", ["..", "/", "/etc", "a/../../b", "{root}x", "{root}/../x"])
    def test_one_outside_is_refused_with_both_paths(self, tmp_path, wanted):
        wanted = wanted.format(root=tmp_path)
        with pytest.raises(CallError) as caught:
            trace_directory(str(tmp_path), wanted)
        assert caught.value.code is Code.INVALID_ARGUMENT
        words = f"directory is {wanted!r}, which lies outside {tmp_path.resolve()} (--profiler-dir)"
        assert caught.value.message == words

    def test_no_link_leads_out(self, tmp_path):
        (tmp_path / "root").mkdir()
        (tmp_path / "root" / "link").symlink_to(tmp_path)
        with pytest.raises(CallError, match="lies outside"):
            trace_directory(str(tmp_path / "root"), "link/elsewhere")

    @pytest.mark.parametrize("wanted", ["a\0b", "loop/x"])
    def test_what_is_no_path_is_refused(self, tmp_path, wanted):
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(CallError) as caught:
            trace_directory(str(tmp_path), wanted)
        assert caught.value.code is Code.INVALID_ARGUMENT


async def test_a_worker_without_a_directory_for_profiles_names_the_flag(house):
    refused = await house.refusal(house.operate("StartProfile"))
    assert (refused.code(), "--profiler-dir" in refused.details()) == (Code.FAILED_PRECONDITION, True)
    assert directories(house) == []


async def test_the_trace_is_written_where_the_caller_says_and_its_path_comes_back(open_house, tmp_path):
    script = Script(values={"stop_profile": "/traces/rank0-0001.trace.json.gz"})
    async with open_house(script, profiler_dir=str(tmp_path)) as house:
        await house.operate("StartProfile", directory="night")
        assert directories(house) == [str(tmp_path.resolve() / "night")]
        assert (await house.operate("StopProfile")).path == "/traces/rank0-0001.trace.json.gz"


async def test_a_directory_outside_never_reaches_the_engine(open_house, tmp_path):
    async with open_house(profiler_dir=str(tmp_path)) as house:
        refused = await house.refusal(house.operate("StartProfile", directory="/etc"))
        assert refused.code() is Code.INVALID_ARGUMENT
        assert directories(house) == []


@pytest.mark.parametrize("method", ["StartProfile", "StopProfile"])
async def test_what_the_engine_refuses_is_a_failed_precondition_in_its_words(open_house, tmp_path, method):
    refusal = ("WrongState", "not now")
    script = Script(refusals={"start_profile": refusal, "stop_profile": refusal})
    async with open_house(script, profiler_dir=str(tmp_path)) as house:
        refused = await house.refusal(house.operate(method))
        assert (refused.code(), "not now" in refused.details()) == (Code.FAILED_PRECONDITION, True)


async def test_a_sleeping_worker_is_not_profiled_but_says_where_its_last_trace_is(open_house, tmp_path):
    script = Script(refusals={"stop_profile": ("WrongState", "no profile runs; the last trace is /t")})
    async with open_house(script, profiler_dir=str(tmp_path)) as house:
        await house.operate("Sleep", level=2)
        refused = await house.refusal(house.operate("StartProfile"))
        assert "the worker is asleep at level 2" in refused.details()
        assert "the last trace is /t" in (await house.refusal(house.operate("StopProfile"))).details()


@pytest.mark.parametrize("method", ["StartProfile", "StopProfile"])
async def test_a_worker_that_still_loads_is_refused_at_once(open_house, tmp_path, method):
    async with open_house(ready=False, loaded=False, profiler_dir=str(tmp_path)) as house:
        refused = await house.refusal(house.operate(method))
        assert (refused.code(), method in refused.details()) == (Code.FAILED_PRECONDITION, True)
