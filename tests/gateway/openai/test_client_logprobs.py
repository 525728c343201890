"""Log-probabilities and echoes as OpenAI's own client reads them."""

from tests.gateway.openai.conftest import HI


async def test_a_chats_logprobs_name_each_token_with_its_bytes(client):
    answer = await client.chat.completions.create(model="tiny", messages=HI, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert [token.token for token in tokens] == ["Hello", " dor", "mouse"]
    assert [(top.token, top.logprob) for top in tokens[1].top_logprobs] == [(" dor", -0.25), ("mouse", -1.25)]
    assert bytes(tokens[0].bytes) == b"Hello"


async def test_bytes_of_a_part_of_a_character_are_not_made_up(client, worker):
    worker.tokens = (7,)
    answer = await client.chat.completions.create(model="tiny", messages=HI, logprobs=True)
    (token,) = answer.choices[0].logprobs.content
    assert (token.bytes, token.top_logprobs) == (None, [])


async def test_a_streams_logprobs_ask_for_each_token_once(client, worker):
    worker.tokens = (1, 2, 1, 2)
    stream = await client.completions.create(model="tiny", prompt="a", logprobs=1, stream=True)
    offsets = [offset async for chunk in stream for offset in chunk.choices[0].logprobs.text_offset]
    assert offsets == [0, 5, 9, 14]
    asked = [list(seen.request.token_ids) for seen in worker.seen if seen.method == "Detokenize"]
    assert asked == [[1], [2]]


async def test_an_echo_stands_before_the_answer(client):
    answer = await client.completions.create(model="tiny", prompt="Say: ", echo=True, n=2)
    assert [choice.text for choice in answer.choices] == ["Say: Hello dormouse"] * 2
    answer = await client.completions.create(model="tiny", prompt=[1, 3], echo=True)
    assert answer.choices[0].text == "HellomouseHello dormouse"


async def test_an_echo_with_logprobs_tells_those_of_the_prompt_of_the_tokens_that_were_used(client, worker):
    answer = await client.completions.create(model="tiny", prompt="Say", echo=True, logprobs=1, max_tokens=1)
    told = answer.choices[0].logprobs
    assert told.tokens == ["Hello", " dor", "Hello"]
    assert told.token_logprobs == [None, -0.25, -0.25]
    assert told.top_logprobs == [None, {" dor": -0.25}, {"Hello": -0.25}]
    assert told.text_offset == [0, 5, 9]
    assert worker.seen[0].method == "Generate", "a model that sleeps is held for"
