"""Images over HTTP, on their way through the whole gateway: three APIs, their limits, and what is told of them."""

import asyncio
import base64
import json

import anthropic
import grpc
import openai
import pytest

from dormouse_api.limits import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES, MAX_MESSAGE_BYTES
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.image_room import ImageRoom
from dormouse_gateway.openai.bodies import MAX_BODY_BYTES
from tests.gateway.openai.raw import Raw

PNG = b"\x89PNG" + bytes(range(256)) * 3000
TEXT = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{TEXT}"


def chat(*urls):
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "What?"}, *parts]}]}


def seen(worker):
    return worker.seen[-1].request.chat.messages


async def test_a_chats_images_reach_the_worker_in_their_order(client, worker):
    await client.chat.completions.create(**chat(URL, "data:image/gif;base64,YQ=="))
    (turn,) = seen(worker)
    assert [part.WhichOneof("part") for part in turn.parts] == ["text", "image", "image"]
    assert (turn.content, turn.parts[1].image, turn.parts[2].image) == ("", PNG, b"a")


async def test_text_alone_is_what_it_was(client, worker):
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": content}])
    assert seen(worker)[0] == pb.ChatMessage(role="user", content="a\nb")


async def test_a_response_takes_images_also_from_functions(client, worker):
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": [image]}
    turn = {"role": "user", "content": [{"type": "input_text", "text": "What?"}, image]}
    await client.responses.create(model="tiny", input=[turn, call, result])
    user, _, tool = seen(worker)
    assert [user.parts[1].image, tool.parts[0].image] == [PNG, PNG]
    assert (tool.role, tool.tool_call_id) == ("tool", "1")


async def test_a_message_takes_images_also_from_tools(claude, worker):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}
    used = {"type": "tool_use", "id": "1", "name": "look", "input": {"type": "image"}}
    result = {"type": "tool_result", "tool_use_id": "1", "is_error": True, "content": [image]}
    turns = [
        {"role": "user", "content": [image, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    await claude.messages.create(model="tiny", max_tokens=9, messages=turns)
    user, _, tool = seen(worker)
    assert [part.image or part.text for part in user.parts] == [PNG, "What?"]
    assert [part.image or part.text for part in tool.parts] == ["Error:", PNG]


async def test_tokens_of_images_are_counted_by_the_worker(claude, worker):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}
    await claude.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": [image]}])
    assert seen(worker)[0].parts[0].image == PNG


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://secret.example/a.png?token=hush", "image_url.url is a URL of a host; allowed: data:"),
        ("file:///etc/passwd", "image_url.url is no data URL of an image"),
        ("data:image/png;base64,***", "image_url.url is no base64"),
        ("data:image/png;base64,", "is an empty image"),
        ("data:image/png;base64," + "A" * (MAX_IMAGE_BYTES // 3 * 4 + 8), f"at most {MAX_IMAGE_BYTES} bytes"),
    ],
)
async def test_what_is_no_image_is_named_and_not_shown(client, worker, url, words):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**chat(url))
    assert words in caught.value.message
    assert caught.value.param.startswith("messages")
    assert not any(shown in str(caught.value) for shown in ("hush", "passwd", "***", "AAAA"))
    assert worker.seen == []


async def test_there_are_only_so_many(client, worker):
    with pytest.raises(
        openai.BadRequestError, match=f"the last of {MAX_IMAGES + 1} images; allowed: at most {MAX_IMAGES}"
    ):
        await client.chat.completions.create(**chat(*[URL] * (MAX_IMAGES + 1)))
    many = ["data:image/png;base64," + "A" * (MAX_IMAGES_BYTES // 12 * 4)] * 4
    with pytest.raises(openai.BadRequestError, match=r"bytes of images; allowed: .* bytes together"):
        await client.chat.completions.create(**chat(*many, URL))
    assert worker.seen == []


async def test_an_image_of_the_largest_size_passes(client, worker):
    whole = base64.b64encode(bytes(MAX_IMAGE_BYTES)).decode()
    await client.chat.completions.create(**chat(f"data:image/png;base64,{whole}"))
    assert len(seen(worker)[0].parts[1].image) == MAX_IMAGE_BYTES


async def post(house, body, *, told):
    """Return the status and the words of a body whose length is told, or is not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", house.ports.openai)
    length = f"content-length: {len(body)}" if told else "transfer-encoding: chunked"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    writer.write(head.encode() + (body if told else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)))
    status, _, said = await Raw(reader, writer).response()
    writer.close()
    return status, said["error"]["message"]


async def test_a_large_body_of_many_values_is_not_parsed(house):
    status, words = await post(house, b'{"model": "tiny", "messages": [' + b"1," * MAX_BODY_BYTES + b"1]}", told=True)
    assert (status, "values and more than" in words) == (413, True)


async def test_a_large_body_that_does_not_tell_its_length_has_no_room(house):
    body = json.dumps(chat("data:image/png;base64," + "A" * MAX_BODY_BYTES)).encode()
    status, words = await post(house, body, told=False)
    assert (status, f"the limit is {MAX_BODY_BYTES} bytes" in words) == (413, True)


async def test_text_has_the_limit_that_it_had(client):
    said = chat(URL) | {"user": "u"}
    said["messages"][0]["content"][0]["text"] = "a" * (MAX_MESSAGE_BYTES + 1)
    with pytest.raises(openai.APIStatusError, match="bytes as a message"):
        await client.chat.completions.create(**said)


async def test_tokens_of_images_are_told_where_there_are_any(client, worker):
    told = await client.chat.completions.create(**chat())
    assert "image_tokens" not in told.usage.prompt_tokens_details.model_dump(exclude_unset=True)
    worker.image_tokens = 3
    told = await client.chat.completions.create(**chat(URL))
    assert told.usage.prompt_tokens_details.image_tokens == 3
    answer = await client.responses.create(model="tiny", input="hi")
    assert answer.usage.input_tokens_details.image_tokens == 3


def test_requests_with_images_share_a_room():
    room = ImageRoom(10)
    with room.taken(6), room.taken(4):
        with pytest.raises(CallError, match="the limit is 10 bytes") as caught, room.taken(1):
            pass
        assert (caught.value.code.name, caught.value.retry_after_s) == ("RESOURCE_EXHAUSTED", 1.0)
        assert repr(room) == "ImageRoom(10 of 10 bytes)"
    assert room.num_bytes == 0
    with pytest.raises(CallError, match="allowed: at most 10 bytes") as caught, room.taken(11):
        pass
    assert caught.value.code.name == "INVALID_ARGUMENT"


async def test_room_is_given_back_however_a_request_ends(client, claude, house, worker):
    room = house.gateway._proxy.images
    await client.chat.completions.create(**chat(URL, URL))
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**chat(URL, URL, "nonsense"))
    worker.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "prompt.chat is bad")
    source = {"type": "base64", "media_type": "image/png", "data": TEXT * 3}
    turn = {"role": "user", "content": [{"type": "image", "source": source}]}
    with pytest.raises(anthropic.BadRequestError):
        await claude.messages.create(model="tiny", max_tokens=9, messages=[turn])
    assert room.num_bytes == 0


async def test_a_stream_that_goes_on_elsewhere_takes_its_images_along(house, two_talkers, open_client):
    stream = aiter(await open_client(house).chat.completions.create(**chat(URL, URL), stream=True))
    told = [await anext(stream)]
    while not told[-1].choices[0].delta.content:
        told.append(await anext(stream))
    busy, idle = sorted(two_talkers, key=lambda worker: not worker.started.is_set())
    idle.gate.set()
    await busy.stop()
    told += [piece async for piece in stream]
    assert "".join(piece.choices[0].delta.content or "" for piece in told) == "Hello dormouse"
    (asked,) = [one.request for one in idle.seen if isinstance(one.request, pb.GenerateRequest)]
    assert list(asked.resume.output_token_ids) == [1]
    assert [part.image for part in asked.chat.messages[0].parts if part.image] == [PNG, PNG]
