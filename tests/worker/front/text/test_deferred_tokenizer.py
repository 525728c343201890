"""A model without tokenizer.json: text once the engine made one, token ids always."""

from __future__ import annotations

import shutil

import grpc
import pytest

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import EngineStatus, State
from dormouse_worker.front.text.deferred_tokenizer import LateCodec
from dormouse_worker.testing.fake_engine import Script
from tests.waiting import until


@pytest.fixture
def bare_path(model_path, tmp_path):
    """The model's directory without its tokenizer.json."""
    return shutil.copytree(model_path, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))


async def until_known(house):
    """Wait until the front has looked for a tokenizer of the engine's: it does so beside what it serves."""
    codec = house.front.worker.served.edition.model.codec
    await until(lambda: codec._codec or codec._is_hopeless)


async def test_text_is_understood_with_the_tokenizer_that_the_engine_made(open_house, model_path, bare_path):
    async with open_house(Script(tokenizer_path=str(model_path / "tokenizer.json")), path=bare_path) as house:
        await until_known(house)
        assert "".join(message.text for message in await house.collect("hello", max_tokens=5)) == "hello"
        assert len((await house.tokenize("hello")).token_ids) == 5


async def test_without_any_tokenizer_text_is_refused_for_good_and_token_ids_are_served(open_house, bare_path):
    async with open_house(path=bare_path) as house:
        await until_known(house)
        messages = await house.collect([72, 73], max_tokens=2)
        assert [token for message in messages for token in message.token_ids] == [72, 73]
        assert "".join(message.text for message in messages) == ""
        for call in (
            house.generate("hello").read(),
            house.generate([72], bad_words=["hello"]).read(),
            house.tokenize("hello"),
        ):
            refused = await house.refusal(call)
            assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "takes token ids only" in refused.details()
            assert str(bare_path / "tokenizer.json") in refused.details()


async def test_a_tokenizer_that_could_not_be_converted_is_told_with_its_cause(open_house, bare_path):
    problem = "its tokenizer cannot be converted: [Errno 28] No space left on device: '/cache'"
    async with open_house(Script(tokenizer_problem=problem), path=bare_path) as house:
        await until_known(house)
        refused = await house.refusal(house.tokenize("hello"))
        assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert problem in refused.details()
        assert (await house.collect([72, 73], max_tokens=2))[-1].completion_tokens == 2


async def test_without_any_tokenizer_stop_strings_are_refused_for_they_would_never_match(open_house, bare_path):
    async with open_house(path=bare_path) as house:
        await until_known(house)
        refused = await house.refusal(house.generate([72], stop=["a", "b"]).read())
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.details().startswith("sampling_params.stop is 2 strings; allowed: none ")
        assert [word for word in ("stop_token_ids", str(bare_path)) if word not in refused.details()] == []
        assert (await house.collect([72, 73], max_tokens=5, stop_token_ids=[73]))[-1].completion_tokens == 2


async def test_with_the_tokenizer_that_the_engine_made_stop_strings_match(open_house, model_path, bare_path):
    async with open_house(Script(tokenizer_path=str(model_path / "tokenizer.json")), path=bare_path) as house:
        await until_known(house)
        assert (await house.collect("hello", max_tokens=5, stop=["ll"]))[-1].matched_stop == "ll"


async def test_while_it_is_converted_text_may_be_sent_later(open_house, bare_path):
    async with open_house(path=bare_path, ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        assert (await house.refusal(house.tokenize("hello"))).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_made_tokenizer_that_can_not_be_read_fails_the_worker(open_house, bare_path, tmp_path):
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{")
    async with open_house(Script(tokenizer_path=str(broken)), path=bare_path, ready=False) as house:
        await house.until_state(State.FAILED)
        assert house.front.worker.board.failure.reason == "ModelInvalid"


def test_whether_stop_strings_can_match_is_not_known_while_the_tokenizer_is_converted():
    codec = LateCodec("missing")
    codec.take(EngineStatus(state=State.LOADING))
    with pytest.raises(CallError, match="being converted") as caught:
        assert codec.why_textless
    assert caught.value.code is grpc.StatusCode.UNAVAILABLE
    codec.take(EngineStatus(state=State.PROFILED))
    assert codec.why_textless == "this model takes token ids only: missing"


def test_a_new_engine_does_not_take_the_tokenizer_away(model_path):
    codec = LateCodec("missing")
    codec.take(EngineStatus(state=State.PROFILED, tokenizer_path=str(model_path / "tokenizer.json")))
    codec.take(EngineStatus(state=State.STARTING))
    assert codec.decode([72], skip_special_tokens=True)
    assert codec.vocab_size > 0
