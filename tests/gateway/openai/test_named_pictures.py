"""Images by digest on their way through the whole gateway, over HTTP and gRPC."""

from hashlib import sha256

import grpc
import openai
import pytest

from dormouse_api.status import IMAGE_UNKNOWN, read_details
from dormouse_api.v1 import inference_pb2 as pb
from tests.gateway.openai.test_pictures import PNG, URL, chat, seen

DIGEST = sha256(PNG).digest()
NAMED = f"sha256:{DIGEST.hex()}"


@pytest.fixture
async def keeping(make_house, worker):
    """A gateway that keeps images, and serves the model tiny."""
    async with make_house(kept_image_bytes=1 << 22) as house:
        await house.add("tiny", [worker])
        yield house


def images(worker):
    return [part.image for turn in seen(worker) for part in turn.parts if part.WhichOneof("part") == "image"]


async def test_a_second_question_names_the_image_of_the_first(keeping, worker, open_client):
    client = open_client(keeping)
    await client.chat.completions.create(**chat(URL))
    await client.chat.completions.create(**chat(NAMED, "data:image/gif;base64,YQ=="))
    assert images(worker) == [PNG, b"a"]


async def test_every_api_has_a_place_for_the_digest(keeping, worker, open_client, open_anthropic):
    client, claude = (
        open_client(keeping, "k"),
        open_anthropic(keeping, "k", default_headers={"authorization": "Bearer k"}),
    )
    await client.chat.completions.create(**chat(URL))
    part = {"type": "input_image", "image_url": NAMED, "detail": "auto"}
    await client.responses.create(model="tiny", input=[{"role": "user", "content": [part]}])
    assert images(worker) == [PNG]
    turn = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": NAMED}}]}
    await claude.messages.create(model="tiny", max_tokens=9, messages=[turn])
    assert images(worker) == [PNG]
    await claude.messages.count_tokens(model="tiny", messages=[turn])
    assert images(worker) == [PNG]


async def test_another_key_is_told_to_send_it(keeping, worker, open_client):
    await open_client(keeping, "a").chat.completions.create(**chat(URL))
    with pytest.raises(openai.BadRequestError, match="send the image whole") as caught:
        await open_client(keeping, "b").chat.completions.create(**chat(NAMED))
    assert (caught.value.code, caught.value.param) == ("image_unknown", "messages")
    assert len(worker.seen) == 1


async def test_a_gateway_that_keeps_none_says_so(client):
    await client.chat.completions.create(**chat(URL))
    with pytest.raises(openai.BadRequestError, match="DORMOUSE_KEPT_IMAGE_BYTES is 0") as caught:
        await client.chat.completions.create(**chat(NAMED))
    assert caught.value.code == "image_unknown"


@pytest.mark.parametrize("url", ["sha256:", "sha256:abc", NAMED + "00", "sha256:" + "xy" * 32])
async def test_what_is_no_digest_is_named(keeping, worker, open_client, url):
    with pytest.raises(
        openai.BadRequestError, match=r"image_url.url is no digest of an image; allowed: sha256: and 64"
    ):
        await open_client(keeping).chat.completions.create(**chat(url))
    assert worker.seen == []


async def test_over_grpc_a_program_reads_the_reason(keeping, worker):
    def ask(**image):
        turn = pb.ChatMessage(role="user", parts=[pb.ContentPart(**image)])
        return keeping.stub.Tokenize(pb.TokenizeRequest(model="tiny", chat=pb.Chat(messages=[turn])))

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(image_sha256=DIGEST)
    error = caught.value
    raw = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert read_details(error.code(), error.details(), raw).reason == IMAGE_UNKNOWN
    await ask(image=PNG)
    await ask(image_sha256=DIGEST)
    assert images(worker) == [PNG]


async def test_a_digest_takes_the_room_of_its_image(make_house, worker, open_client):
    large = "data:image/png;base64," + "A" * (1 << 21)
    digest = sha256(bytes((1 << 21) // 4 * 3)).hexdigest()
    async with make_house(kept_image_bytes=1 << 22, max_image_bytes=1 << 22) as house:
        await house.add("tiny", [worker])
        client = open_client(house)
        await client.chat.completions.create(**chat(large))
        with pytest.raises(openai.BadRequestError, match="allowed: at most 4194304 bytes"):
            await client.chat.completions.create(**chat(*[f"sha256:{digest}"] * 3))
        await client.chat.completions.create(**chat(f"sha256:{digest}"))
        assert house.gateway._proxy.images.num_bytes == 0
