"""What a client sees: the tokens of transformers, alone and together, over gRPC through the gateway."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tools import reference

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROMPTS = [
    "def sleep(self, seconds):",
    "Return the number of",
    "import os\nimport sys\n\n",
    "class Dormouse(object):\n    ",
    "The quick brown fox",
    "Raise ValueError if",
    "    for key, value in",
    "x",
]
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def expected(tiny_model):
    """The tokens of each prompt and transformers' greedy continuation of it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    return [(ids, reference.greedy_tokens(tiny_model, ids, MAX_TOKENS)) for ids in prompts]


def test_eight_prompts_one_by_one_equal_transformers_token_for_token(model, expected):
    assert [model.greedy(ids, MAX_TOKENS) for ids, _ in expected] == [tokens for _, tokens in expected]


def test_eight_prompts_at_once_equal_transformers_token_for_token(model, expected):
    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda pair: model.greedy(pair[0], MAX_TOKENS), expected))
    assert answers == [tokens for _, tokens in expected]


def test_a_chat_is_rendered_by_the_models_own_template(model, tiny_model):
    messages = [{"role": "user", "content": "What does sleep do?"}]
    request = pb.TokenizeRequest(model="shared", chat=pb.Chat(messages=[pb.ChatMessage(**m) for m in messages]))
    assert list(model.stub.Tokenize(request).token_ids) == reference.chat_token_ids(tiny_model, messages)


def test_the_same_seed_gives_the_same_text_and_the_stream_ends_once(model):
    def sampled(seed):
        params = pb.SamplingParams(temperature=0.9, top_p=0.95, seed=seed, max_tokens=24)
        return model.generate(pb.GenerateRequest(text="def main():", sampling_params=params))

    def tokens(messages):
        # A message may carry several tokens, so how they are cut is not part of the answer.
        return [token for message in messages for token in message.token_ids]

    first, again, other = sampled(7), sampled(7), sampled(8)
    assert tokens(first) == tokens(again)
    assert tokens(first) != tokens(other)
    assert [m.finish_reason != 0 for m in first].count(True) == 1
    assert first[-1].finish_reason != 0
    assert first[-1].usage.completion_tokens == len(tokens(first))


def test_get_model_describes_the_model(model):
    info = model.stub.GetModel(pb.GetModelRequest(model="shared"))
    assert (info.architecture, info.vocab_size, info.max_model_len) == ("LlamaForCausalLM", 4096, 512)
