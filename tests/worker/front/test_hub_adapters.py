"""Adapters of a hub in the front: fetched beside whatever goes on, each on its own, and told how far they are."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.commands import AddLora
from dormouse_worker.files.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from tests.waiting import until
from tests.worker.files.test_adapter_files import write
from tests.worker.front.adapter_kit import FAILED, LOADED, PENDING, commands_of, opening, until_open
from tests.worker.hub_server import COMMIT, HubServer

Code = grpc.StatusCode
FILE = {"name": "hr", "uri": "file:///adapters/hr"}
HUB = {"name": "sql", "uri": "hf://org/tiny@main"}


@pytest.fixture
def hub(tmp_path):
    local = write(tmp_path / "local")
    with HubServer() as server:
        server.state.files = {name: (local / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}
        yield server


@pytest.fixture
def open_with_hub(open_house, hub, tmp_path):
    fields = {"lora_cache": tmp_path / "cache", "lora_tokens": tmp_path, "environ": {"HF_ENDPOINT": hub.endpoint}}
    opened = opening(open_house)
    return lambda **more: opened(**{**fields, **more})


async def set_loras(house, *adapters):
    told = [control.LoraSpec(**each) for each in adapters]
    await house.operate("SetLoras", adapters=told, digest=str(len(adapters)))


async def listed(house):
    return {each.name: each for each in (await house.operate("ListLoras")).adapters}


async def until_listed(house, name, state):
    """Wait until the adapter is in this state; return it."""
    await house.front.worker.changes.until(lambda: _state(house, name) == state)
    return (await listed(house))[name]


def _state(house, name):
    wanted = house.front.worker.adapters.get(name)
    return LOADED if wanted.loaded else FAILED if wanted.failure else PENDING


async def test_it_is_fetched_and_loaded_from_where_it_lies(open_with_hub, tmp_path):
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        told = await until_listed(house, "sql", LOADED)
        assert (told.uri, told.progress) == (HUB["uri"], "")
        (command,) = commands_of(house, AddLora)
        assert command.path == str(tmp_path / "cache" / "org%2Ftiny@main" / COMMIT)
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == told.digest


async def test_a_call_that_adds_it_answers_when_it_is_loaded(open_with_hub):
    async with open_with_hub() as house:
        assert (await house.operate("AddLora", **HUB)).state == LOADED


async def test_while_one_comes_others_are_loaded_and_served_and_it_says_how_far_it_is(open_with_hub, hub):
    hub.state.files[WEIGHTS_FILE] += bytes(13 << 20)
    hub.state.stall_after[WEIGHTS_FILE] = 11 << 20  # the library writes 10 MiB at once
    async with open_with_hub() as house:
        await set_loras(house, HUB, FILE)
        await until_listed(house, "hr", LOADED)
        assert (await house.collect("hi", model="hr"))[0].adapter_digest
        board = house.front.worker.adapters
        await house.front.worker.changes.until(lambda: board.get("sql").progress)
        told = (await listed(house))["sql"]
        assert (told.state, told.progress) == (PENDING, "10 MiB are fetched")
        assert (await house.operate("AddLora", name="third", uri="file:///adapters/third")).state == LOADED


async def test_what_nobody_wants_any_more_is_fetched_no_further(open_with_hub, hub):
    hub.state.stall_after[WEIGHTS_FILE] = 10
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        await asyncio.to_thread(hub.state.stalled.wait)
        await set_loras(house)
        await until(lambda: not house.front._adapters._fetching)
        assert "0 on their way" in repr(house.front._adapters._fetches)


async def test_what_is_removed_leaves_the_disk(open_with_hub, tmp_path):
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        await until_listed(house, "sql", LOADED)
        await set_loras(house)
        await until_open(house)
        assert not (tmp_path / "cache" / "org%2Ftiny@main" / COMMIT).exists()


async def test_a_new_engine_gets_it_without_the_hub(open_with_hub, hub):
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        await until_listed(house, "sql", LOADED)
        hub.state.status = 503
        await house.operate("Sleep", level=3)
        await house.operate("WakeUp")
        await house.until_spawned(2)
        await house.make_ready()
        await until_listed(house, "sql", LOADED)
        assert len(commands_of(house, AddLora)) == 1


@pytest.mark.parametrize(
    ("misbehaves", "reason", "words"),
    [
        ({"token": "secret"}, "Unauthorized", "no token was sent; set tokenSecretRef"),
        ({"repo": "org/other", "token": "x"}, "Unauthorized", "does not exist or is private"),
        ({"revision": "v2"}, "ModelNotFound", "no such revision; check what stands behind the @"),
        ({"status": 503}, "HubUnreachable", "the hub answers 503"),
        ({"damage": {WEIGHTS_FILE}}, "Truncated", "is damaged"),
    ],
)
async def test_a_failure_has_its_reason_and_is_tried_again(open_with_hub, hub, misbehaves, reason, words):
    for name, value in misbehaves.items():
        setattr(hub.state, name, value)
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        told = await until_listed(house, "sql", FAILED)
        assert told.failure.reason == reason
        assert words in told.failure.message
        error = await house.refusal(house.collect("hi", model="sql"))
        assert (error.code(), reason in error.details()) == (Code.UNAVAILABLE, True)
        assert await house.collect("hi", model="tiny")
        for name in misbehaves:
            setattr(hub.state, name, getattr(type(hub.state)(), name))
        house.front._adapters._go()  # what the timer does
        await until_listed(house, "sql", LOADED)


async def test_a_call_that_adds_one_says_why_it_cannot_be_fetched(open_with_hub, hub):
    hub.state.token = "secret"
    async with open_with_hub() as house:
        error = await house.refusal(house.operate("AddLora", **HUB))
        assert error.code() is Code.PERMISSION_DENIED
        assert not await listed(house)


async def test_the_named_token_is_sent_and_told_to_nobody(open_with_hub, hub, tmp_path, caplog):
    hub.state.token = "secret"
    async with open_with_hub() as house:
        named = {**HUB, "token": "hub-token/token"}
        await set_loras(house, named)
        told = await until_listed(house, "sql", FAILED)
        assert "the token hub-token/token cannot be read" in told.failure.message
        (tmp_path / "hub-token").mkdir()
        (tmp_path / "hub-token" / "token").write_text("secret\n")
        house.front._adapters._go()
        assert "secret" not in str(await until_listed(house, "sql", LOADED))
        assert "secret\n" not in caplog.text


async def test_nobody_has_by_anothers_token_what_his_own_does_not_open(open_with_hub, hub, tmp_path):
    hub.state.token = "secret"
    for name, token in (("ours", "secret"), ("theirs", "wrong")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(token)
    async with open_with_hub() as house:
        ours, theirs = {**HUB, "token": "ours/token"}, {**HUB, "name": "stolen", "token": "theirs/token"}
        await set_loras(house, ours)
        digest = (await until_listed(house, "sql", LOADED)).digest
        for more in ({}, {"digest": digest}):
            await set_loras(house, ours, {**theirs, **more})
            assert (await until_listed(house, "stolen", FAILED)).failure.reason == "Unauthorized"
            await set_loras(house, ours)


@pytest.mark.parametrize("token", ["../x", "a/../b", "a/..", "/etc/passwd", "a", "a/b/c"])
async def test_a_token_names_a_secret_and_its_key_and_no_other_file(open_with_hub, token):
    async with open_with_hub() as house:
        error = await house.refusal(house.operate("AddLora", **HUB, token=token))
        assert (error.code(), "allowed: SECRET/KEY" in error.details()) == (Code.INVALID_ARGUMENT, True)


async def test_the_end_of_the_front_ends_what_it_fetches(open_with_hub, hub):
    hub.state.stall_after[WEIGHTS_FILE] = 10
    async with open_with_hub() as house:
        await set_loras(house, HUB)
        await asyncio.to_thread(hub.state.stalled.wait)
        fetches = house.front._adapters._fetches
    assert "0 on their way" in repr(fetches)
