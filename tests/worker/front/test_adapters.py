"""Adapters by name: who may ask for them, what the engine is told, and what outlives an engine."""

from __future__ import annotations

import grpc
import msgspec
import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import AddLora, PinLora, RemoveLora
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.front.api.adapters import to_adapter
from dormouse_worker.front.engine.adapter_board import WantedAdapter
from dormouse_worker.testing.fake_engine import MODEL_LEN, Script
from tests.worker.front.adapter_kit import (
    DIGEST,
    FAILED,
    LOADED,
    OTHER,
    PENDING,
    commands_of,
    opening,
    script,
    until_open,
)

Code = grpc.StatusCode


@pytest.fixture
def open_with_adapters(open_house):
    return opening(open_house)


async def add(house, name="sql", uri="file:///adapters/sql", **fields):
    return await house.operate("AddLora", name=name, uri=uri, **fields)


def last_request(house):
    return next(m for m in reversed(house.engine.engine.received) if isinstance(m, AddRequest))


async def test_a_request_names_the_adapter_as_its_model(open_with_adapters):
    async with open_with_adapters() as house:
        told = await add(house)
        assert (told.state, told.digest, told.rank, told.slot_bytes) == (LOADED, DIGEST, 8, 1024)
        for model, digest in (("sql", DIGEST), ("tiny:sql", DIGEST), ("tiny", ""), ("", "")):
            first, *others = await house.collect("hi", model=model)
            assert first.adapter_digest == digest
            assert not any(message.adapter_digest for message in others)
            assert last_request(house).adapter == digest


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, control.LORA_KIND_LORA),
        ({"invocation": (7, 8)}, control.LORA_KIND_ACTIVATED_LORA),
        ({"num_virtual_tokens": 6}, control.LORA_KIND_SOFT_PROMPT),
    ],
    ids=str,
)
def test_it_is_told_what_kind_it_is(fields, kind):
    told = to_adapter(WantedAdapter("sql", "/adapters/sql", loaded=AdapterInfo(DIGEST, 8, 1024, **fields)))
    assert told.kind == kind
    assert tuple(told.invocation_token_ids) == fields.get("invocation", ())
    assert told.virtual_tokens == fields.get("num_virtual_tokens", 0)
    assert to_adapter(WantedAdapter("sql", "/adapters/sql")).kind == control.LORA_KIND_UNSPECIFIED


async def test_a_soft_prompt_counts_against_the_models_length_and_is_no_fault_of_the_worker(open_house):
    said = msgspec.json.encode(AdapterInfo(DIGEST, 0, 1024, num_virtual_tokens=MODEL_LEN - 4)).decode()
    async with opening(open_house)(Script(values={"add_lora": said})) as house:
        await add(house)
        for ids, params, words in (
            ([1] * 4, {}, f"below the model length {MODEL_LEN} less {MODEL_LEN - 4} of its soft prompt"),
            ([1] * 3, {"max_tokens": 2}, "at most 1: together the model length"),
        ):
            with pytest.raises(grpc.RpcError, match=words) as caught:
                await house.collect(ids, model="sql", **params)
            assert caught.value.code() is Code.INVALID_ARGUMENT
        await house.collect([1] * 3, model="sql", max_tokens=1)
        await house.collect([1] * 4, model="tiny", max_tokens=2)


async def test_text_of_an_adapter_is_the_bases_text(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        ids = await house.inference.Tokenize(pb.TokenizeRequest(model="sql", text="hi"))
        assert ids == await house.tokenize("hi")
        described = await house.inference.GetModel(pb.GetModelRequest(model="sql"))
        assert (described.name, described.adapter, described.adapter_digest) == ("tiny", "sql", DIGEST)


async def test_a_name_that_nobody_has_is_not_found(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        error = await house.refusal(house.collect("hi", model="other"))
        assert (error.code(), error.details()) == (
            Code.NOT_FOUND,
            "model is 'other'; this worker knows: tiny, team/tiny, sql",
        )


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"name": "tiny"}, Code.INVALID_ARGUMENT, "is the base model's"),
        ({"name": "a b"}, Code.INVALID_ARGUMENT, "allowed: 1 to 253 letters"),
        ({"name": ""}, Code.INVALID_ARGUMENT, "allowed: 1 to 253 letters"),
        ({"uri": "hf://a"}, Code.INVALID_ARGUMENT, "allowed: file://"),
        ({"uri": "file://../x"}, Code.INVALID_ARGUMENT, "an absolute path"),
        ({"digest": "xyz"}, Code.INVALID_ARGUMENT, "64 hexadecimal digits"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_refused_before_the_engine_hears_of_it(open_with_adapters, fields, code, words):
    async with open_with_adapters() as house:
        error = await house.refusal(add(house, **{"name": "sql", **fields}))
        assert error.code() is code
        assert words in error.details()
        assert not commands_of(house, AddLora)


async def test_what_the_engine_refuses_leaves_no_name(open_with_adapters):
    refused = Script(refusals={"add_lora": ("AdapterInvalid", "/adapters/sql: use_dora is True")})
    async with open_with_adapters(refused) as house:
        error = await house.refusal(add(house))
        assert (error.code(), "use_dora is True" in error.details()) == (Code.INVALID_ARGUMENT, True)
        assert not (await house.operate("ListLoras")).adapters


async def test_a_worker_without_adapters_says_how_to_have_some(open_house):
    async with open_house() as house:
        error = await house.refusal(add(house))
        assert (error.code(), "--enable-lora" in error.details()) == (Code.FAILED_PRECONDITION, True)
        assert (await house.operate("ListLoras")).max_loras == 0


async def test_the_same_again_changes_nothing(open_with_adapters):
    async with open_with_adapters() as house:
        assert await add(house) == await add(house, digest=DIGEST)
        assert len(commands_of(house, AddLora)) == 1
        assert await add(house) == await add(house, digest=DIGEST)
        assert not commands_of(house, RemoveLora)


async def test_new_files_in_the_same_place_are_a_new_adapter(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        house.engine.engine.script = script(OTHER)
        assert (await add(house)).digest == OTHER
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == OTHER


async def test_a_name_keeps_its_digest_over_pins_and_sleeps(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        await house.operate("PinLora", name="sql", pinned=True)
        await house.operate("Sleep", level=2)
        await house.operate("WakeUp")
        await until_open(house)
        first, *later = commands_of(house, AddLora)
        assert first == AddLora("/adapters/sql")
        assert set(later) == {AddLora("/adapters/sql", DIGEST)}


async def test_an_adapter_that_cannot_be_pinned_leaves_nothing_behind(open_with_adapters):
    refused = Script(values=script().values, refusals={"pin_lora": ("AdapterLimit", "max_loras is 2")})
    async with open_with_adapters(refused) as house:
        error = await house.refusal(add(house, pinned=True))
        assert (error.code(), "max_loras is 2" in error.details()) == (Code.RESOURCE_EXHAUSTED, True)
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]
        assert not (await house.operate("ListLoras")).adapters


async def test_a_name_gets_another_adapter_and_the_former_one_leaves(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        house.engine.engine.script = script(OTHER)
        assert (await add(house, uri="file:///adapters/sql-2")).digest == OTHER
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == OTHER


async def test_an_adapter_with_two_names_stays_for_the_second(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        await add(house, name="sql-2")
        await house.operate("RemoveLora", name="sql")
        assert not commands_of(house, RemoveLora)
        await house.operate("RemoveLora", name="sql-2")
        await house.operate("RemoveLora", name="sql-2")
        assert commands_of(house, RemoveLora) == [RemoveLora(DIGEST)]
        assert (await house.refusal(house.collect("hi", model="sql"))).code() is Code.NOT_FOUND


async def test_pins_are_told_and_kept(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        assert (await house.operate("PinLora", name="sql", pinned=True)).pinned
        assert commands_of(house, PinLora)[-1] == PinLora(DIGEST, is_pinned=True)
        (told,) = (await house.operate("ListLoras")).adapters
        assert (told.name, told.pinned, told.uri) == ("sql", True, "file:///adapters/sql")
        assert (await house.refusal(house.operate("PinLora", name="other"))).code() is Code.NOT_FOUND


async def test_an_older_epoch_changes_nothing(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house, epoch=5)
        for method, fields in (("AddLora", {"uri": "file:///x"}), ("RemoveLora", {}), ("PinLora", {"pinned": True})):
            error = await house.refusal(house.operate(method, name="sql", epoch=4, **fields))
            assert error.code() is Code.FAILED_PRECONDITION
        (told,) = (await house.operate("ListLoras")).adapters
        assert (told.digest, told.pinned) == (DIGEST, False)


async def test_adapters_of_the_command_line_are_loaded_when_an_engine_opens(open_with_adapters):
    async with open_with_adapters(lora_modules=(("sql", "/adapters/sql"),)) as house:
        await until_open(house)
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST


async def test_what_cannot_be_loaded_is_told_by_its_name_and_the_base_serves(open_with_adapters):
    refused = Script(refusals={"add_lora": ("AdapterNotFound", "/adapters/sql: no such directory")})
    async with open_with_adapters(refused, lora_modules=(("sql", "/adapters/sql"),)) as house:
        await until_open(house)
        (told,) = (await house.operate("ListLoras")).adapters
        assert (told.state, "no such directory" in told.failure.message) == (FAILED, True)
        error = await house.refusal(house.collect("hi", model="sql"))
        assert (error.code(), "no such directory" in error.details()) == (Code.UNAVAILABLE, True)
        assert await house.collect("hi", model="tiny")


async def test_a_sleeping_worker_notes_what_is_wanted_and_loads_it_at_its_wake(open_with_adapters):
    async with open_with_adapters() as house:
        await house.operate("Sleep", level=2)
        assert (await add(house)).state == PENDING
        assert not commands_of(house, AddLora)
        await house.operate("WakeUp")
        await until_open(house)
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST


async def test_standby_and_a_new_engine_bring_adapters_back(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house, digest=DIGEST, pinned=True)
        await house.operate("Sleep", level=3)
        assert (await house.operate("ListLoras")).adapters[0].state == PENDING
        await house.operate("WakeUp")
        await house.until_spawned(2)
        await house.make_ready()
        await until_open(house)
        assert commands_of(house, AddLora) == [AddLora("/adapters/sql", DIGEST)]
        assert commands_of(house, PinLora) == [PinLora(DIGEST, is_pinned=True)]
        assert (await house.collect("hi", model="sql"))[0].adapter_digest == DIGEST


async def test_an_answer_goes_on_with_the_adapter_that_began_it(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        for digest, goes_on in ((DIGEST, True), (OTHER, False), ("", False)):
            resume = pb.Resume(output_token_ids=[64], adapter_digest=digest)
            call = house.collect("hi", model="sql", resume=resume, seed=3, metadata=proof(Role.GATEWAY))
            if goes_on:
                assert await call
            else:
                error = await house.refusal(call)
                assert (error.code(), "began this answer" in error.details()) == (Code.UNAVAILABLE, True)


async def test_adapters_in_flight_are_told_in_one_series(open_with_adapters):
    async with open_with_adapters() as house:
        await add(house)
        house.engine.is_paused = True
        call = house.generate([1, 2, 3], max_tokens=3, model="sql")
        await house.engine.until_received(lambda message: isinstance(message, AddRequest))
        waiting = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters="sql"}'
        assert waiting in (await house.http("/metrics"))[1]
        house.engine.step()
        await call.read()
        running = 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""}'
        assert running in (await house.http("/metrics"))[1]
        house.front.worker.requests.check_integrity()
        call.cancel()
        await house.front.worker.until_idle()
        house.front.worker.requests.check_integrity()
