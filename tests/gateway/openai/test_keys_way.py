"""InferenceKeys over HTTP: where a key stands in headers, refusals that say when to come again, streams that end."""

import json

import openai
import pytest

from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import INFERENCE_KEYS
from tests.gateway.clients.test_inference_keys import infk
from tests.waiting import until


@pytest.fixture
async def keyed(make_house, worker):
    async with make_house(require_api_keys=True) as house:
        await house.add("tiny", [worker])
        house.kube.put(INFERENCE_KEYS, infk("a", requestsPerMinute=2, tokensPerMinute=1000))
        await until(house.gateway._keys.objects.names)
        yield house


async def test_every_answer_says_where_the_key_stands_and_a_refusal_when_to_come_again(keyed, open_client):
    client = open_client(keyed, "a-secret")
    answer = await client.completions.with_raw_response.create(model="tiny", prompt="a")
    headers = answer.headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert headers["x-ratelimit-reset-requests"].endswith("s")
    assert (headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-remaining-tokens"]) == ("1000", "744")
    stream = await client.completions.with_raw_response.create(model="tiny", prompt="a", stream=True)
    assert stream.headers["x-ratelimit-remaining-requests"] == "0"
    async for _ in stream.parse():
        pass
    with pytest.raises(openai.RateLimitError, match="2 requests per minute") as refused:
        await client.completions.create(model="tiny", prompt="a")
    headers = refused.value.response.headers
    assert 55 <= int(headers["retry-after"]) <= 61
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.value.code == "rate_limit_exceeded"


async def test_several_prompts_of_one_body_are_as_many_requests(keyed, open_client):
    client = open_client(keyed, "a-secret")
    answer = await client.completions.with_raw_response.create(model="tiny", prompt=["a", "b"])
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(answer.parse().choices) == 2


async def test_a_question_that_is_answered_whole_counts_too(keyed, open_client):
    client = open_client(keyed, "a-secret")
    answer = await client.embeddings.with_raw_response.create(model="tiny", input=["a", "b"])
    assert answer.headers["x-ratelimit-remaining-requests"] in {"0", "1"}
    whose = {"key": "default/a", "namespace": "default", "model": "default/tiny"}
    await until(lambda: keyed.gateway.metrics.value("dormouse_usage_tokens_total", **whose, part="prompt") == 2)


async def test_a_stream_of_a_key_that_is_deleted_ends_with_an_error_event(keyed, worker, open_client):
    worker.is_gated = True
    client = open_client(keyed, "a-secret")
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    await anext(aiter(stream))
    await keyed.kube.delete(INFERENCE_KEYS, NAMESPACE, "a")
    with pytest.raises(openai.APIError) as ended:
        async for _ in stream:
            pass
    assert ended.value.message == "the API key default/a was revoked"
    assert json.loads(json.dumps(ended.value.body))["type"] == "authentication_error"
    await worker.cancelled.wait()
