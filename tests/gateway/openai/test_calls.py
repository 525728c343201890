"""The seam: what the gateway's core tells a call of this process reaches who reads it, in time and bounded."""

import asyncio

import grpc
import pytest

from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.keys import ANYBODY
from dormouse_gateway.openai.calls import LocalCall, ask

METADATA = (("authorization", "Bearer k"),)


def call(core, request=None):
    return LocalCall(core, request or pb.GenerateRequest(model="tiny"), METADATA)


async def test_messages_metadata_and_the_request_pass_in_both_directions():
    async def core(method, raw, context, _admit):
        assert (method.name, pb.GenerateRequest.FromString(raw).model) == ("Generate", "tiny")
        assert (context.invocation_metadata(), context.time_remaining()) == (METADATA, None)
        await context.send_initial_metadata((("dormouse-held", "true"),))
        await context.write(b"1")
        await context.write(b"2")
        context.set_trailing_metadata((("dormouse-start", "cold"), ("raw-bin", b"\0")))

    async with call(core) as made:
        await made.progressed.wait()
        assert made.said == {"dormouse-held": "true"}
        assert [await made.read() for _ in range(3)] == [b"1", b"2", None]
        assert made.said == {"dormouse-held": "true", "dormouse-start": "cold"}


async def test_a_message_waits_until_the_one_before_is_read():
    written = []

    async def core(_method, _raw, context, _admit):
        for number in (b"1", b"2", b"3"):
            await context.write(number)
            written.append(number)

    async with call(core) as made:
        for _ in range(20):
            await asyncio.sleep(0)
        assert written == [b"1"]
        assert [await made.read() for _ in range(4)] == [b"1", b"2", b"3", None]


@pytest.mark.parametrize("retry_after_s", [None, 2.5])
async def test_a_status_is_raised_where_it_is_read_after_the_messages_before_it(retry_after_s):
    error = CallError(grpc.StatusCode.UNAVAILABLE, "asleep", retry_after_s)

    async def core(_method, _raw, context, _admit):
        await context.write(b"1")
        await context.abort_with_status(to_grpc_status(error))

    async with call(core) as made:
        assert await made.read() == b"1"
        with pytest.raises(CallError) as caught:
            await made.read()
    assert caught.value == error


async def test_leaving_a_call_cancels_it_and_waits_for_its_end():
    ended = []

    async def core(_method, _raw, context, _admit):
        context.add_done_callback(ended.append)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async with call(core) as made:
        await asyncio.sleep(0)
    assert ended == ["cleaned up", made]


async def test_a_question_within_an_admitted_call_is_not_admitted_again():
    async def core(method, _raw, context, admit):
        assert method.name == "Detokenize"
        async with admit(context.invocation_metadata()) as caller:
            assert caller is ANYBODY
        await context.write(b"answer")

    assert await ask(core, pb.DetokenizeRequest(), METADATA, ANYBODY) == b"answer"


async def test_a_question_without_an_answer_is_an_error():
    async def core(_method, _raw, _context, _admit):
        """Say nothing."""

    with pytest.raises(CallError, match="without an answer"):
        await ask(core, pb.DetokenizeRequest(), METADATA, ANYBODY)
