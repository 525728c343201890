"""A tokenizer may know tokens that the model has no row for: whoever names one is refused, and nobody else notices."""

from __future__ import annotations

import json

import grpc
import pytest
from tokenizers import Tokenizer

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.front.testing import VOCAB_SIZE, write_model
from dormouse_worker.testing.fake_engine import Script

PAD = "[PAD]"


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    """A model whose tokenizer got a token that the embedding was not resized for: its id is the vocabulary's size."""
    path = write_model(tmp_path_factory.mktemp("padded"))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens([PAD])
    assert tokenizer.token_to_id(PAD) == VOCAB_SIZE
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def chat(content):
    return pb.Chat(messages=[pb.ChatMessage(role="user", content=content)])


PROMPTS = {"text": f"ab{PAD}", "chat": chat(f"hi{PAD}")}


@pytest.mark.parametrize("kind", PROMPTS)
async def test_a_prompt_with_a_token_beyond_the_vocabulary_is_refused_and_never_reaches_the_engine(
    open_house, padded, kind
):
    async with open_house(path=padded) as house:
        refused = await house.refusal(house.generate(PROMPTS[kind]).read())
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.details()
        named = [f"prompt.{kind}", f"token {VOCAB_SIZE}", f"vocabulary size {VOCAB_SIZE}"]
        assert [word for word in named if word not in refused.details()] == [], refused.details()
        assert not house.engine.engine.has_work
        assert await house.collect("still here")


async def test_tokenize_refuses_what_no_request_could_use(open_house, padded):
    async with open_house(path=padded) as house:
        refused = await house.refusal(house.tokenize(f"a{PAD}"))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"token {VOCAB_SIZE}" in refused.details()
        described = await house.inference.GetModel(pb.GetModelRequest(), timeout=90)
        assert described.vocab_size == VOCAB_SIZE, "the model's, not the tokenizer's"


async def test_a_bad_word_beyond_the_vocabulary_is_left_out_for_it_can_not_be_said(open_house, padded):
    async with open_house(path=padded) as house:
        await house.collect("hi", bad_words=[PAD, "a"])
        assert house.engine.engine.received[-1].sampling.bad_words_token_ids == ((64,),)


async def test_the_size_that_the_engine_tells_holds_where_the_files_tell_none(open_house, tmp_path):
    path = write_model(tmp_path)
    config = json.loads((path / "config.json").read_text())
    del config["vocab_size"]
    (path / "config.json").write_text(json.dumps(config))
    async with open_house(Script(model=ModelInfo(1, "float32", vocab_size=70)), path=path) as house:
        assert (await house.inference.GetModel(pb.GetModelRequest(), timeout=90)).vocab_size == 70
        assert "vocabulary size 70" in (await house.refusal(house.generate("zebra").read())).details()
        assert "vocabulary size 70" in (await house.refusal(house.generate([70]).read())).details()
