"""SetLoras: all adapters that there shall be, loaded beside what goes on."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.commands import AddLora, PinLora, RemoveLora
from dormouse_worker.common.ipc import CommandRequest, CommandResult
from dormouse_worker.testing.fake_engine import Script
from tests.waiting import until
from tests.worker.front.adapter_kit import DIGEST, FAILED, LOADED, OTHER, commands_of, opening, script, until_open

Code = grpc.StatusCode
SQL = {"name": "sql", "uri": "file:///adapters/sql"}
HR = {"name": "hr", "uri": "file:///adapters/hr"}


@pytest.fixture
def open_with_adapters(open_house):
    return opening(open_house)


async def set_loras(house, *adapters, digest="s1", **fields):
    await house.operate("SetLoras", adapters=[control.LoraSpec(**each) for each in adapters], digest=digest, **fields)


async def listed(house):
    return {each.name: each for each in (await house.operate("ListLoras")).adapters}


async def test_a_set_is_all_that_there_is(open_with_adapters):
    async with open_with_adapters(lora_modules=(("old", "/adapters/old"),)) as house:
        await until_open(house)
        await set_loras(house, SQL, HR)
        await until_open(house)
        assert {name: each.state for name, each in (await listed(house)).items()} == {"sql": LOADED, "hr": LOADED}
        assert (await house.operate("GetStatus")).loras_digest == "s1"
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST
        await set_loras(house, digest="none")
        await until_open(house)
        assert not await listed(house)
        assert commands_of(house, RemoveLora)[-1] == RemoveLora(DIGEST)


async def test_the_same_set_again_loads_nothing(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, SQL)
        await until_open(house)
        version = (await house.operate("GetStatus")).loras_version
        await set_loras(house, {**SQL, "digest": DIGEST}, digest="s2")
        await until_open(house)
        assert len(commands_of(house, AddLora)) == 1
        assert (await house.operate("GetStatus")).loras_digest == "s2"
        assert (await house.operate("GetStatus")).loras_version > version


async def test_a_set_that_cannot_be_is_refused_before_anything_changes(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, SQL)
        await until_open(house)
        for wrong in ({"name": "tiny", "uri": "file:///x"}, SQL, {"name": "a", "uri": "hf://a"}):
            error = await house.refusal(set_loras(house, SQL, wrong, digest="s2"))
            assert error.code() is Code.INVALID_ARGUMENT
        assert (await house.refusal(set_loras(house, digest="x" * 65))).code() is Code.INVALID_ARGUMENT
        assert (await house.operate("GetStatus")).loras_digest == "s1"
        assert list(await listed(house)) == ["sql"]


async def test_a_worker_without_room_refuses_a_set_with_somebody_in_it(open_house):
    async with open_house() as house:
        assert (await house.refusal(set_loras(house, SQL))).code() is Code.FAILED_PRECONDITION
        await set_loras(house, digest="none")
        assert (await house.operate("GetStatus")).loras_digest == "none"


async def test_an_older_epoch_sets_nothing(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, SQL, epoch=5)
        await until_open(house)
        assert (await house.refusal(set_loras(house, epoch=4))).code() is Code.FAILED_PRECONDITION
        assert list(await listed(house)) == ["sql"]


async def test_a_name_means_what_it_meant_until_what_it_shall_mean_is_loaded(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, SQL)
        await until_open(house)
        house.engine.engine.script = Script(refusals={"add_lora": ("AdapterInvalid", "use_dora is True")})
        await set_loras(house, {**SQL, "uri": "file:///adapters/sql-2"}, digest="s2")
        await until_open(house)
        told = (await listed(house))["sql"]
        assert (told.state, told.digest, "use_dora" in told.failure.message) == (LOADED, DIGEST, True)
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST
        house.engine.engine.script = script(OTHER)
        await set_loras(house, {**SQL, "uri": "file:///adapters/sql-2"}, digest="s2")
        await until_open(house)
        told = (await listed(house))["sql"]
        assert (told.digest, told.failure.message, told.uri) == (OTHER, "", "file:///adapters/sql-2")
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == OTHER


async def test_what_cannot_be_loaded_is_tried_again(open_with_adapters):
    refused = Script(refusals={"add_lora": ("AdapterNotFound", "no such directory")})
    async with open_with_adapters(refused) as house:
        house.front._adapters._retry_s = 0.0
        await set_loras(house, SQL)
        await until_open(house)
        assert (await listed(house))["sql"].state == FAILED
        house.engine.engine.script = script()
        await house.front.worker.changes.until(lambda: house.front.worker.adapters.get("sql").is_settled)
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST


async def test_a_retry_that_fails_alike_is_told_once(open_with_adapters, caplog):
    refused = Script(refusals={"add_lora": ("AdapterNotFound", "no such directory")})
    async with open_with_adapters(refused) as house:
        house.front._adapters._retry_s = 0.0
        await set_loras(house, SQL)
        await until_open(house)
        version = (await house.operate("GetStatus")).loras_version
        await until(lambda: len(commands_of(house, AddLora)) > 3)
        assert (await house.operate("GetStatus")).loras_version == version
        assert [record.message for record in caplog.records].count("adapter cannot be loaded") == 1


async def test_who_sleeps_gives_up_at_its_wake_what_was_taken_from_it(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, SQL)
        await until_open(house)
        await house.operate("Sleep", level=1)
        await set_loras(house, digest="none")
        await house.operate("WakeUp")
        await until(lambda: commands_of(house, RemoveLora))
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]


async def test_an_adapter_with_two_names_is_pinned_while_one_of_them_wants_it(open_with_adapters):
    async with open_with_adapters() as house:
        await set_loras(house, {**SQL, "pinned": True}, HR)
        await until_open(house)
        assert commands_of(house, PinLora)[-1] == PinLora(DIGEST, is_pinned=True)
        await set_loras(house, HR, digest="s2")
        await until_open(house)
        assert commands_of(house, PinLora)[-1] == PinLora(DIGEST, is_pinned=False)
        assert not commands_of(house, RemoveLora)


async def test_a_request_for_an_adapter_on_its_way_waits_for_it_and_has_it_loaded_first(open_with_adapters):
    hanging = Script(values=script().values, hangs_at="add_lora")
    async with open_with_adapters(hanging) as house:
        await set_loras(house, {**SQL, "name": "a", "uri": "file:///adapters/a"}, HR, SQL)
        calls = [asyncio.create_task(house.collect("hi", model=name)) for name in ("sql", "tiny:sql")]
        asked = await house.engine.until_received(_is_add)
        await until(lambda: house.front.worker.adapters.awaited["sql"] == 2)
        assert (await house.collect("hi", model="tiny"))[0].adapter_digest == ""
        assert not any(call.done() for call in calls)
        house.engine.engine.script = script()
        house.engine.say(CommandResult(asked.command_id, value=script().values["add_lora"]))
        for call in calls:
            assert (await call)[0].adapter_digest == DIGEST
        assert [each.path for each in commands_of(house, AddLora)][:2] == ["/adapters/a", "/adapters/sql"]
        assert house.front.worker.adapters.awaited.total() == 0


async def test_who_waits_for_an_adapter_that_cannot_be_loaded_gets_the_reason(open_with_adapters):
    async with open_with_adapters(Script(hangs_at="add_lora")) as house:
        await set_loras(house, SQL)
        call = asyncio.create_task(house.collect("hi", model="sql"))
        asked = await house.engine.until_received(_is_add)
        await until(lambda: house.front.worker.adapters.awaited["sql"])
        house.engine.say(CommandResult(asked.command_id, "AdapterInvalid", "use_dora is True"))
        error = await house.refusal(call)
        assert (error.code(), "use_dora is True" in error.details()) == (Code.UNAVAILABLE, True)


def _is_add(message):
    return isinstance(message, CommandRequest) and isinstance(message.command, AddLora)
