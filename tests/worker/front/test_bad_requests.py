"""What Generate refuses: every field beyond its limits, by name, value and limit, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import itertools
import math

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb

Code = grpc.StatusCode
HTTP2_WINDOW_BYTES = 65_535  # what gRPC sends to a caller that does not read
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
    "stream interval": ({"stream_interval": 1025}, ["stream_interval", "1025", "at most 1024"]),
    "stream interval highest": ({"stream_interval": 2**32 - 1}, ["stream_interval", "4294967295", "1024"]),
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


RAW = {
    "stream_interval above 32 bits": (b"\x48\x80\x80\x80\x80\x10", ["stream_interval", "4294967295"]),
    "stream_interval as text": (b"\x4a\x01a", ["stream_interval", "varint"]),
    "text with a surrogate": (b"\x1a\x03\xed\xa0\x80", ["text is no text", "UTF-8"]),
    "max_tokens above 32 bits": (b"\x32\x06\x30\x80\x80\x80\x80\x10", ["sampling_params.max_tokens", "4294967295"]),
    "model as a number": (b"\x08\x01", ["model", "varint"]),
    "no message at all": (b"\xff", ["message", "whole"]),
}


@pytest.mark.parametrize("method", ["Tokenize", "Detokenize", "GetModel", "WatchLoad"])
async def test_bytes_that_are_no_message_are_refused_by_every_method(house, method):
    kind = house.serving.unary_stream if method == "WatchLoad" else house.serving.unary_unary
    call = kind(f"/dormouse.v1.Inference/{method}")(b"\xff", timeout=90)
    refused = await house.refusal(call.read() if method == "WatchLoad" else call)
    assert (refused.code(), "message" in refused.details()) == (Code.INVALID_ARGUMENT, True)


def send_raw(house, raw):
    return house.serving.unary_stream("/dormouse.v1.Inference/Generate")(raw, timeout=90)


@pytest.mark.parametrize("case", RAW)
async def test_hand_made_bytes_are_refused_by_field_and_limit(house, case):
    raw, named = RAW[case]
    refused = await house.refusal(send_raw(house, raw).read())
    assert refused.code() is Code.INVALID_ARGUMENT
    assert [word for word in named if word not in refused.details()] == [], refused.details()


async def test_64_good_streams_go_on_while_1000_bad_requests_arrive(house):
    house.engine.is_paused = True
    good = [house.generate([n], max_tokens=10, timeout=250) for n in range(64)]
    await house.engine.until_received(lambda message: getattr(message, "request_id", None) == "64")
    kinds = [lambda fields=fields: house.generate(**fields) for fields, _ in BAD.values()]
    kinds += [lambda raw=raw: send_raw(house, raw) for raw, _ in RAW.values()]
    bad = itertools.cycle(kinds)
    for _ in range(10):
        refused = await asyncio.gather(*(house.refusal(next(bad)().read()) for _ in range(100)))
        assert {error.code() for error in refused} == {Code.INVALID_ARGUMENT}
        house.engine.step()
    assert [[t async for m in call for t in m.token_ids] for call in good] == [[n] * 10 for n in range(64)]
    assert house.front.worker.requests.num_accepted == 64


async def test_a_reader_who_never_reads_stalls_none_of_63_others_and_loses_nothing(house):
    """Sixteen choices with all log-probabilities are more than gRPC takes in for a caller that does not read."""
    ask = {"n": 16, "max_tokens": 62, "logprobs": 20, "temperature": 0}
    slow = house.generate([7, 8], timeout=60, **ask)
    await house.engine.until_received(lambda message: getattr(message, "request_id", None) == "16")
    others = await asyncio.gather(*(house.collect([n], max_tokens=60, timeout=60) for n in range(63)))
    assert [[t for m in messages for t in m.token_ids] for messages in others] == [[n] * 60 for n in range(63)]
    await house.front.worker.until_idle()  # its sequences do not wait for the reader either
    tokens = {index: [] for index in range(16)}
    num_bytes = 0
    async for message in slow:
        tokens[message.choice_index] += message.token_ids
        num_bytes += message.ByteSize()
    assert tokens == {index: [7, 8] * 31 if index % 2 == 0 else [8, 7] * 31 for index in range(16)}
    assert num_bytes > 2 * HTTP2_WINDOW_BYTES
