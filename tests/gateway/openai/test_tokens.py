"""/tokenize and /detokenize: tokens as vLLM tells them, asked of a real worker's front."""

import aiohttp
import openai
import pytest

from tests.gateway.clients.test_keys import write_key
from tests.gateway.clients.test_salts import engine  # noqa: F401  # a fixture
from tests.gateway.openai.conftest import HI


@pytest.fixture
async def ask(house):
    """Post to the gateway."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{house.ports.openai}") as client:

        async def post(path, **body):
            async with client.post(path, json={"model": "tiny"} | body) as answer:
                return answer.status, await answer.json()

        yield post


@pytest.fixture
async def real(ask, engine):  # noqa: F811, ARG001  # fixtures
    """Post to a gateway with a real front; the answer must be good."""

    async def post(path, **body):
        status, answer = await ask(path, **body)
        assert status == 200, answer
        return answer

    return post


async def test_text_becomes_tokens_and_these_become_the_text(real):
    told = await real("/tokenize", prompt="hi there", add_special_tokens=False, return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) > 1
    assert "".join(told["token_strs"]) == "hi there"
    assert told["max_model_len"] > told["count"]
    assert await real("/detokenize", tokens=told["tokens"]) == {"prompt": "hi there"}


@pytest.mark.parametrize("added", [None, True, False])
@pytest.mark.parametrize("what", [{"prompt": "a"}, {"messages": HI}])
async def test_whether_special_tokens_are_added_is_the_clients_choice_else_the_models(ask, house, worker, added, what):
    await house.add("tiny", [worker])
    _, told = await ask("/tokenize", add_special_tokens=added, **what)
    assert (told["tokens"], told["token_strs"]) == ([1, 2], None)
    asked = worker.seen[0].request
    assert (asked.add_special_tokens if asked.HasField("add_special_tokens") else None) is added


async def test_a_conversation_ends_where_its_answer_begins_or_goes_on(real):
    turns = [*HI, {"role": "assistant", "content": "It is"}]
    text = {}
    for how in ("add_generation_prompt", "continue_final_message"):
        tokens = (await real("/tokenize", messages=turns, **{how: True}))["tokens"]
        text[how] = (await real("/detokenize", tokens=tokens))["prompt"]
    assert text["continue_final_message"].endswith("It is")
    assert text["add_generation_prompt"].startswith(text["continue_final_message"])
    assert text["add_generation_prompt"] != text["continue_final_message"]


async def test_an_answer_goes_on_with_the_final_message(house, engine, open_client, real):  # noqa: F811, ARG001  # fixtures
    turns = [*HI, {"role": "assistant", "content": "It is"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    answer = await open_client(house).chat.completions.create(
        model="tiny", messages=turns, max_tokens=1, extra_body=extra
    )
    assert answer.prompt_token_ids == (await real("/tokenize", messages=turns, continue_final_message=True))["tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "messages"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ("/tokenize", {"prompt": "a", "chat_template": "a"}, "chat_template"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/detokenize", {"tokens": [9999]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_what_is_wrong_is_400_naming_the_field(ask, engine, path, body, param):  # noqa: F811, ARG001  # fixtures
    status, answer = await ask(path, **body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_what_is_too_large_is_refused_before_any_worker_sees_it(house, client, worker):
    url = f"http://127.0.0.1:{house.ports.openai}/tokenize"
    with pytest.raises(openai.APIStatusError, match="bytes as a message") as caught:
        await client.post(url, body={"model": "tiny", "prompt": "a" * (1 << 20)}, cast_to=object)
    assert (caught.value.status_code, worker.seen) == (413, [])


async def test_sleeping_workers_answer_and_it_is_no_activity(ask, house, worker):
    await house.add("tiny", [worker], ready=False)
    _, answer = await ask("/tokenize", prompt="a")
    assert answer["tokens"] == [1, 2]
    assert [seen.method for seen in worker.seen] == ["Tokenize", "GetModel"]
    labels = {"model": "default/tiny", "code": "OK", "method": "Tokenize"}
    assert house.gateway.metrics.value("dormouse_gateway_requests_total", **labels) == 1


async def test_keys_and_their_limits_hold(make_house, worker, open_client, tmp_path):
    write_key(tmp_path, "a", models=["tiny"], requests_per_minute=1)
    async with make_house(api_keys_dir=tmp_path) as house:
        await house.add("tiny", [worker])
        url = f"http://127.0.0.1:{house.ports.openai}"
        body = {"model": "tiny", "prompt": "a", "return_token_strs": True}
        with pytest.raises(openai.AuthenticationError):
            await open_client(house, "wrong").post(f"{url}/tokenize", body=body, cast_to=object)
        right = open_client(house, "a-secret")
        assert (await right.post(f"{url}/tokenize", body=body, cast_to=object))["token_strs"] == ["Hello", " dor"]
        with pytest.raises(openai.RateLimitError, match="1 requests per minute"):
            await right.post(f"{url}/tokenize", body=body, cast_to=object)
