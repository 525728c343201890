"""logprob_token_ids over HTTP: what reaches the worker, and where the named tokens are told."""

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.prompts import tokens
from dormouse_gateway.openai.sampling import begin


class Letters:
    """Knows tokens as letters."""

    async def of(self, token_ids):
        return {token_id: chr(96 + token_id) for token_id in token_ids}


def test_the_ids_reach_the_worker():
    asked = begin({"model": "m", "logprob_token_ids": [5, 6.0]}, "id")
    assert list(asked.sampling_params.logprob_token_ids) == [5, 6]


async def test_named_tokens_stand_behind_the_likeliest_and_none_twice():
    told = pb.PositionLogprobs(
        sampled=pb.TokenLogprob(token_id=1, logprob=-0.5),
        top=[pb.TokenLogprob(token_id=1, logprob=-0.5), pb.TokenLogprob(token_id=2, logprob=-1)],
        named=[pb.TokenLogprob(token_id=2, logprob=-1), pb.TokenLogprob(token_id=9, logprob=-8)],
    )
    (token,) = await tokens(Letters(), [told])
    assert token.top == [("a", -0.5), ("b", -1), ("i", -8)]
