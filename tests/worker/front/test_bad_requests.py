"""What Generate refuses: every field beyond its limits, by name, value and limit, and nobody else is disturbed."""

from __future__ import annotations

import math

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb

Code = grpc.StatusCode
A = 64  # the token of the letter a in the tests' vocabulary


def sampled(**params):
    return {"prompt": "hi", **params}


BAD = {
    "empty text": ({"prompt": ""}, ["prompt.text", "empty", "1"]),
    "empty token ids": ({"prompt": []}, ["token_ids", "empty", "1"]),
    "token outside the vocabulary": ({"prompt": [1, 260]}, ["token_ids[1]", "260"]),
    "prompt as long as the model": ({"prompt": [1] * 64}, ["prompt", "64 tokens", "64"]),
    "prompt and output too long": ({"prompt": [1] * 10, "max_tokens": 55}, ["max_tokens", "55", "54", "64"]),
    "temperature nan": (sampled(temperature=math.nan), ["temperature", "nan", "0"]),
    "temperature infinite": (sampled(temperature=math.inf), ["temperature", "inf"]),
    "temperature negative": (sampled(temperature=-1), ["temperature", "-1"]),
    "top_p zero": (sampled(top_p=0), ["top_p", "0", "1"]),
    "top_p above one": (sampled(top_p=1.5), ["top_p", "1.5"]),
    "top_p nan": (sampled(top_p=math.nan), ["top_p", "nan"]),
    "min_p above one": (sampled(min_p=2), ["min_p", "2"]),
    "min_p negative": (sampled(min_p=-0.25), ["min_p", "-0.25"]),
    "max_tokens zero": (sampled(max_tokens=0), ["max_tokens", "0", "1"]),
    "min_tokens above max_tokens": (sampled(max_tokens=2, min_tokens=3), ["min_tokens", "3", "max_tokens"]),
    "stop strings": (sampled(stop=list("abcde")), ["stop", "5", "4"]),
    "stop string empty": (sampled(stop=[""]), ["stop", "0 bytes", "64"]),
    "stop string long": (sampled(stop=["é" * 33]), ["stop", "66 bytes", "64"]),
    "stop ids": (sampled(stop_token_ids=list(range(65))), ["stop_token_ids", "65", "64"]),
    "stop id outside": (sampled(stop_token_ids=[260]), ["stop_token_ids", "260"]),
    "logprobs": (sampled(logprobs=21), ["logprobs", "21", "20"]),
    "n zero": (sampled(n=0), ["sampling_params.n ", "0", "16"]),
    "n": (sampled(n=17), ["sampling_params.n ", "17", "16"]),
    "prompt logprobs": (sampled(prompt_logprobs=21), ["prompt_logprobs", "21", "20"]),
    "repetition penalty zero": (sampled(repetition_penalty=0), ["repetition_penalty", " 0;", "100"]),
    "repetition penalty": (sampled(repetition_penalty=101), ["repetition_penalty", "101", "100"]),
    "repetition penalty just above": (sampled(repetition_penalty=100.00001), ["repetition_penalty", "100.0000", "100"]),
    "repetition penalty nan": (sampled(repetition_penalty=math.nan), ["repetition_penalty", "nan"]),
    "repetition penalty infinite": (sampled(repetition_penalty=math.inf), ["repetition_penalty", "inf"]),
    "presence penalty": (sampled(presence_penalty=2.5), ["presence_penalty", "2.5", "from -2 to 2"]),
    "presence penalty nan": (sampled(presence_penalty=math.nan), ["presence_penalty", "nan", "from -2 to 2"]),
    "frequency penalty": (sampled(frequency_penalty=-2.5), ["frequency_penalty", "-2.5", "from -2 to 2"]),
    "frequency penalty infinite": (sampled(frequency_penalty=-math.inf), ["frequency_penalty", "-inf", "from -2 to 2"]),
    "logit biases": (sampled(logit_bias=dict.fromkeys(range(301), 1.0)), ["logit_bias", "301", "300"]),
    "logit bias outside": (sampled(logit_bias={260: 1.0}), ["logit_bias", "260"]),
    "logit bias": (sampled(logit_bias={7: 100.5}), ["logit_bias", "100.5 for 7", "from -100 to 100"]),
    "logit bias nan": (sampled(logit_bias={7: math.nan}), ["logit_bias", "nan for 7"]),
    "logit bias infinite": (sampled(logit_bias={7: -math.inf}), ["logit_bias", "-inf for 7"]),
    "allowed ids": (sampled(allowed_token_ids=[1] * 1025), ["allowed_token_ids", "1025", "1024"]),
    "allowed id outside": (sampled(allowed_token_ids=[260]), ["allowed_token_ids", "260"]),
    "bad words": (sampled(bad_words=["a"] * 65), ["bad_words", "65", "64"]),
    "bad word empty": (sampled(bad_words=["a", ""]), ["bad_words", "0 bytes", "64"]),
    "bad word long": (sampled(bad_words=["é" * 33]), ["bad_words", "66 bytes", "64"]),
    "nothing but bad words": (sampled(allowed_token_ids=[A], bad_words=["ba"]), ["allowed_token_ids", "1 ids"]),
    "nothing before min_tokens": (
        sampled(allowed_token_ids=[A], stop_token_ids=[A], min_tokens=1),
        ["allowed_token_ids", "min_tokens"],
    ),
    "priority": ({"priority": 101}, ["priority", "101", "from -100 to 100"]),
    "priority low": ({"priority": -(2**31)}, ["priority", "-2147483648", "from -100 to 100"]),
    "request id long": ({"request_id": "i" * 129}, ["request_id", "129", "128"]),
    "request id not printable": ({"request_id": "a\nb"}, ["request_id", "\\n"]),
    "resume from a client": ({"resume": pb.Resume(output_token_ids=[1])}, ["resume", "gateway"]),
    "over one MiB": ({"prompt": "a" * (1 << 20)}, ["message", "1048576"]),
    "chat without messages": ({"prompt": pb.Chat()}, ["chat.messages", "empty", "1"]),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_request_names_field_value_and_limit_and_disturbs_nobody(house, case):
    arguments, named = BAD[case]
    refused = await house.refusal(house.generate(**arguments).read())
    assert refused.code() is Code.INVALID_ARGUMENT, refused.details()
    assert [word for word in named if word not in refused.details()] == [], refused.details()
    assert "generation_config" not in refused.details()
    assert not house.engine.engine.has_work
    assert await house.collect("still here")


# at the limits: accepted
GOOD = {
    "n": {"n": 16},
    "penalties": {"repetition_penalty": 100, "presence_penalty": -2, "frequency_penalty": 2},
    "smallest penalty": {"repetition_penalty": 1e-6},
    "logit bias": {"logit_bias": {**dict.fromkeys(range(259), 100.0), 259: -100.0}},
    "allowed ids": {"allowed_token_ids": [259] * 1024},
    "bad words": {"bad_words": ["é" * 32] * 64},
    "logprobs": {"logprobs": 20, "prompt_logprobs": 20},
    "stops": {"stop": ["é" * 32] * 4, "stop_token_ids": [259] * 64},
    "a NUL": {"stop": ["\0"], "bad_words": ["\0"]},
}


@pytest.mark.parametrize("case", GOOD)
async def test_at_its_limits_a_request_is_served(house, case):
    messages = await house.collect("hi", max_tokens=1, **GOOD[case])
    assert messages[-1].finish_reason


@pytest.mark.parametrize("priority", [-100, 100])
async def test_a_priority_reaches_the_engine(house, priority):
    await house.collect("hi", priority=priority)
    assert house.engine.engine.received[-1].priority == priority


async def test_every_parameter_reaches_the_engine(house):
    ask = {"logit_bias": {5: -1.5}, "allowed_token_ids": [7, 7, 8], "bad_words": ["a"], "prompt_logprobs": 3}
    await house.collect("hi", repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5, **ask)
    sampling = house.engine.engine.received[-1].sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, -0.5)
    assert (sampling.logit_bias, sampling.allowed_token_ids) == ({5: -1.5}, (7, 8))
    assert (sampling.bad_words_token_ids, sampling.prompt_logprobs) == (((A,),), 3)


async def test_unset_parameters_change_nothing(house):
    await house.collect("hi")
    sampling = house.engine.engine.received[-1].sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (sampling.logit_bias, sampling.allowed_token_ids, sampling.bad_words_token_ids) == ({}, (), ())
    assert sampling.prompt_logprobs is None
