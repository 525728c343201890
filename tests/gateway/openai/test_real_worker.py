"""OpenAI's client, the gateway, and a real worker's front: what one says the next understands."""

import openai
import pytest

from tests.gateway.clients.test_salts import engine  # noqa: F401  # a fixture
from tests.gateway.openai.conftest import HI


@pytest.fixture
def client(house, engine, open_client):  # noqa: F811, ARG001  # fixtures
    """A client of a gateway with a real front, which renders templates and checks requests by itself."""
    return open_client(house)


async def test_a_chat_with_logprobs_and_tools_gets_an_answer(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    answer = await client.chat.completions.create(
        model="tiny", messages=HI, tools=[tool], logprobs=True, top_logprobs=2, max_tokens=3, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.content) == 3
    assert answer.usage.completion_tokens == 6


async def test_an_echo_with_logprobs_has_one_of_each_prompt_token(client):
    answer = await client.completions.create(model="tiny", prompt="hi", echo=True, logprobs=0, max_tokens=1)
    told = answer.choices[0].logprobs
    assert told.token_logprobs[0] is None
    assert None not in told.token_logprobs[1:]
    assert len(told.tokens) == answer.usage.total_tokens


@pytest.mark.parametrize("size", [{"max_tokens": 9999}, {"messages": [{"role": "user", "content": "a " * 40_000}]}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_has_openais_code(client, size, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**{"model": "tiny", "messages": HI, "stream": stream} | size)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("wrong", "param"), [({"logit_bias": {"9999": 1}}, "logit_bias"), ({"max_tokens": 9999}, "max_tokens")]
)
async def test_what_only_the_worker_knows_to_be_wrong_names_the_field_too(client, wrong, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=HI, **wrong)
    assert caught.value.param == param
