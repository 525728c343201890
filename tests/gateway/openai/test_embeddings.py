"""/v1/embeddings with OpenAI's client: vectors in order, long lists in parts, and what is refused."""

import base64
import json
from array import array

import aiohttp
import grpc
import openai
import pytest

from dormouse_api.names import Role
from dormouse_api.status import CallError
from dormouse_api.testing_tickets import POD_UID, public_key
from dormouse_gateway.openai.embeddings import parts_of
from dormouse_gateway.openai.shares import MAX_PART_CHARS, MAX_PART_INPUTS, named_as_written
from dormouse_gateway.testing.workers import FakeWorker
from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import ModelInfo, State
from dormouse_worker.front.app import Front
from dormouse_worker.front.testing import engine_settings, front_settings, write_model
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine
from tests.gateway.clients.test_keys import write_key


@pytest.fixture
async def embedder(tmp_path, house, open_client):
    """A client of a gateway with a real front before an engine that makes vectors."""
    path = write_model(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    engine = InProcessEngine(Script(model=ModelInfo(1, "float32", task="embed", embedding_size=4)))
    settings = front_settings(gateway_key=public_key(Role.GATEWAY))
    front = Front(settings, engine_settings(path), lambda _: engine.spawn)
    ports = await front.start()
    try:
        await front.worker.changes.until(lambda: front.worker.board.state is State.PROFILED)
        await front.worker.command(InitializeCache(0))
        await house.add("tiny", [FakeWorker(port=ports.inference)], uid=POD_UID)
        yield open_client(house)
    finally:
        await front.close()


async def test_vectors_are_those_of_the_worker_in_either_format(embedder):
    packed = await embedder.embeddings.create(model="tiny", input=["abc", "d"])  # the client asks for base64
    plain = await embedder.embeddings.create(model="tiny", input=["abc", "d"], encoding_format="float")
    assert [one.embedding for one in packed.data] == [one.embedding for one in plain.data]
    assert [(one.index, one.embedding[0]) for one in plain.data] == [(0, 3.0), (1, 1.0)]
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens, plain.model) == (4, 4, "tiny")


@pytest.mark.parametrize(("given", "lengths"), [("abc", [3]), ([5, 6], [2]), ([[5, 6], [7]], [2, 1])])
async def test_one_text_or_token_ids_are_inputs_too(embedder, given, lengths):
    answer = await embedder.embeddings.create(model="tiny", input=given, dimensions=2)
    assert [one.embedding[0] for one in answer.data] == lengths
    assert {len(one.embedding) for one in answer.data} == {2}


async def test_a_long_list_comes_back_whole_and_in_order(embedder):
    answer = await embedder.embeddings.create(model="tiny", input=["a" * (1 + n % 50) for n in range(300)])
    assert [(one.index, one.embedding[0]) for one in answer.data] == [(n, 1 + n % 50) for n in range(300)]


async def test_a_text_that_is_too_long_is_told_by_its_place_in_the_whole_list(embedder):
    with pytest.raises(openai.BadRequestError) as caught:
        await embedder.embeddings.create(model="tiny", input=[*["a"] * 40, "b" * 100])
    assert caught.value.body["message"].startswith("input[40] is 100 tokens; allowed: at most the model length 64")
    assert (caught.value.param, caught.value.code) == ("input[40]", "context_length_exceeded")
    answer = await embedder.embeddings.create(model="tiny", input=["b" * 100], extra_body={"truncate_prompt_tokens": 9})
    assert answer.data[0].embedding[0] == 9


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ""}, "input"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [1, -1]}, "input[1]"),
        ({"input": [1, 1 << 63]}, "input[1]"),
        ({"input": [1, 2.5]}, "input[1]"),
        ({"input": [1, True]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [1, 260]}, "input[0][1]"),
        ({"input": [[1], [260]]}, "input[1][0]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": None}, "input"),
        ({"input": "a" * 1_000_000}, "input[0]"),
        ({"input": "a", "dimensions": -1}, "dimensions"),
        ({"input": "a", "dimensions": 1 << 63}, "dimensions"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "extra_body": {"truncate_prompt_tokens": 0}}, "truncate_prompt_tokens"),
        ({"input": "a", "extra_body": {"late": True}}, "late"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(embedder, body, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await embedder.embeddings.create(model="tiny", **body)
    assert caught.value.param == param


async def test_an_empty_text_is_told_the_least_that_it_may_have(embedder):
    with pytest.raises(openai.BadRequestError, match=r"input\[1\] is 0 characters; allowed: at least 1$"):
        await embedder.embeddings.create(model="tiny", input=["a", ""])


async def test_half_a_character_is_refused_by_its_place(house, embedder):
    body = b'{"model": "tiny", "input": ["a", "\\ud800"]}'
    address, headers = f"http://127.0.0.1:{house.ports.openai}/v1/embeddings", {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(address, data=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "input[1]")
    assert (await embedder.embeddings.create(model="tiny", input="   ")).data[0].embedding[0] == 3, "spaces are text"


async def test_an_answer_is_written_vector_by_vector(embedder):
    """Rendered at once, millions of numbers would stop every other stream for seconds."""
    raw = await embedder.embeddings.with_raw_response.create(model="tiny", input=["a"] * 40)
    assert raw.headers["transfer-encoding"] == "chunked"


async def test_a_list_counts_for_a_keys_rate_as_many_requests_as_workers_get(make_house, open_client, tmp_path):
    write_key(tmp_path, "a", requests_per_minute=4, max_concurrent=1)
    worker = FakeWorker(name="one")
    await worker.start()
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        client = open_client(house, "a-secret")
        assert len((await client.embeddings.create(model="tiny", input=["a"] * (3 * MAX_PART_INPUTS + 1))).data) == 49
        with pytest.raises(openai.RateLimitError, match="4 requests per minute"):
            await client.embeddings.create(model="tiny", input="a")
    await worker.stop()


async def test_each_door_names_the_other_for_a_model_of_another_task(embedder):
    with pytest.raises(openai.BadRequestError, match=r"the model's task is embed.*call Embed \(/v1/embeddings\)"):
        await embedder.completions.create(model="tiny", prompt="a")


async def test_a_part_whose_worker_fails_is_asked_of_another(house, open_client):
    """It is answered whole or not at all, so nothing can come twice."""
    going = FakeWorker(name="one", fail_before=CallError(grpc.StatusCode.UNAVAILABLE, "going"))
    workers = [going, FakeWorker(name="two")]
    for worker in workers:
        await worker.start()
    await house.add("tiny", workers)
    answer = await open_client(house).embeddings.create(model="tiny", input=[f"{n % 7}" * (n + 1) for n in range(40)])
    assert [(one.index, one.embedding[0]) for one in answer.data] == [(n, n + 1) for n in range(40)]
    assert [seen.method for seen in going.seen].count("Embed") >= 1
    for worker in workers:
        await worker.stop()


def test_a_body_is_shared_out_by_number_and_size():
    small = parts_of({"model": "m", "input": ["a"] * (MAX_PART_INPUTS + 3)})
    assert [(part.start, len(part.request.inputs)) for part in small] == [(0, MAX_PART_INPUTS), (MAX_PART_INPUTS, 3)]
    large = parts_of({"model": "m", "input": ["a" * MAX_PART_CHARS, "b", "c"]})
    assert [(part.start, len(part.request.inputs)) for part in large] == [(0, 1), (1, 2)]


def test_a_workers_words_are_told_with_the_bodys_own():
    assert named_as_written("inputs[3].token_ids[1] is 9; allowed: …", "input", 32) == "input[35][1] is 9; allowed: …"
    assert named_as_written("dimensions is 5", "input", 32) == "dimensions is 5"


async def test_packed_numbers_are_float32_little_endian(embedder):
    raw = await embedder.embeddings.with_raw_response.create(model="tiny", input="ab", encoding_format="base64")
    told = json.loads(raw.text)["data"][0]["embedding"]
    assert array("f", base64.b64decode(told)).tolist()[0] == 2.0
