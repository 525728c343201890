"""The validator by itself: what stands at a limit is allowed; what is beyond is refused by name, value and limit."""

from __future__ import annotations

import math

import grpc
import pytest

from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED, CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import Sampling
from dormouse_worker.front.refusing import check_request_id
from dormouse_worker.front.requests import validation
from dormouse_worker.front.text.chat_checks import check_chat

VOCAB_SIZE = 2000
TOP = VOCAB_SIZE - 1


def refusal(check, *arguments, **options):
    """Return the sentence of a refusal, or None."""
    try:
        check(*arguments, **options)
    except CallError as error:
        return error.message
    return None


def sampling(**fields):
    return Sampling(**{"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "seed": 0, "max_tokens": 4, **fields})


def make_request(**fields):
    return pb.GenerateRequest(**({"text": "hi"} | fields))


def tokens(*ids):
    return {"token_ids": pb.TokenIds(ids=ids)}


REQUESTS = [
    ({"priority": 100}, {"priority": 101}, "priority is 101; allowed: from -100 to 100"),
    ({"priority": -100}, {"priority": -101}, "priority is -101; allowed: from -100 to 100"),
    (
        {"stream_interval": 1024},
        {"stream_interval": 1025},
        "stream_interval is 1025; allowed: at most 1024 tokens; 0 is 1",
    ),
    ({"request_id": "i" * 128}, {"request_id": "i" * 129}, "request_id is 129 characters; allowed: at most 128"),
    ({"request_id": "a b~"}, {"request_id": "a\n"}, "request_id is 'a\\n'; allowed: printable ASCII characters"),
    ({"request_id": ""}, {"request_id": "é"}, "request_id is '\\xe9'; allowed: printable ASCII characters"),
    ({}, {"text": ""}, "prompt.text is empty; allowed: at least 1 character"),
    (tokens(0, TOP), tokens(), "prompt.token_ids is empty; allowed: at least 1 token"),
    (tokens(TOP), tokens(1, VOCAB_SIZE), "prompt.token_ids[1] is 2000; allowed: below the vocabulary size 2000"),
    (
        {"sampling_params": pb.SamplingParams(n=2)},
        {"sampling_params": pb.SamplingParams(stop_token_ids=[VOCAB_SIZE])},
        "sampling_params.stop_token_ids is 2000; allowed: below the vocabulary size (vocabulary size 2000)",
    ),
    (
        {"chat": pb.Chat(messages=[pb.ChatMessage()])},
        {"chat": pb.Chat()},
        "chat.messages is empty; allowed: at least 1 message",
    ),
]


@pytest.mark.parametrize(("good", "bad", "words"), REQUESTS)
def test_a_request_at_its_limit_is_allowed_and_beyond_it_refused(good, bad, words):
    assert refusal(validation.check_request, make_request(**good), VOCAB_SIZE, from_gateway=False) is None
    assert refusal(validation.check_request, make_request(**bad), VOCAB_SIZE, from_gateway=False) == words


def test_a_request_may_have_one_mebibyte():
    overhead = make_request(text="a" * 2**19).ByteSize() - 2**19
    largest = make_request(text="a" * (2**20 - overhead))
    assert largest.ByteSize() == 2**20
    assert refusal(validation.check_request, largest, VOCAB_SIZE, from_gateway=False) is None
    largest.text += "a"
    words = refusal(validation.check_request, largest, VOCAB_SIZE, from_gateway=False)
    assert words == "message is 1048577 bytes; allowed: at most 1048576 bytes"


def test_a_request_without_a_prompt_is_told_what_it_may_have():
    words = refusal(validation.check_request, pb.GenerateRequest(), VOCAB_SIZE, from_gateway=True)
    assert words == "prompt is missing; allowed: one of text, token_ids or chat is needed"


def test_a_text_of_a_token_that_only_the_tokenizer_knows_is_refused():
    for known in ([], [0, TOP]):
        assert refusal(validation.check_made_of, "prompt.text", known, VOCAB_SIZE) is None
    assert refusal(validation.check_made_of, "prompt.text", [5, VOCAB_SIZE, 1], VOCAB_SIZE) == (
        "prompt.text is made of token 2000, among others; allowed: text of tokens below the vocabulary size 2000; "
        "the tokenizer knows more than the model"
    )


RESUMES = [
    ({"choice_index": 15}, {"choice_index": 16}, "resume.choice_index is 16; allowed: below 16"),
    (
        {"output_token_ids": [TOP]},
        {"output_token_ids": [VOCAB_SIZE]},
        "resume.output_token_ids[0] is 2000; allowed: below the vocabulary size 2000",
    ),
]


@pytest.mark.parametrize(("good", "bad", "words"), RESUMES)
def test_what_another_worker_generated_is_checked_too(good, bad, words):
    good, bad = (make_request(resume=pb.Resume(**fields)) for fields in (good, bad))
    assert refusal(validation.check_request, good, VOCAB_SIZE, from_gateway=True) is None
    assert refusal(validation.check_request, bad, VOCAB_SIZE, from_gateway=True) == words


def test_only_the_gateway_resumes_and_one_choice_at_a_time():
    resume = pb.Resume(output_token_ids=[1])
    words = refusal(validation.check_request, make_request(resume=resume), VOCAB_SIZE, from_gateway=False)
    assert words == "resume is set; allowed: only by the gateway"
    one, two = (make_request(resume=resume, sampling_params=pb.SamplingParams(n=n)) for n in (1, 2))
    assert refusal(validation.check_request, one, VOCAB_SIZE, from_gateway=True) is None
    words = refusal(validation.check_request, two, VOCAB_SIZE, from_gateway=True)
    assert words == "sampling_params.n is 2; allowed: 1 where resume is set"


def make_chat(num_messages=1, num_tools=0, args=(), **fields):
    chat = pb.Chat(messages=[pb.ChatMessage()] * num_messages, **fields)
    chat.template_args.update(dict.fromkeys(args, 1))
    for _ in range(num_tools):
        chat.tools.add()
    return chat


CHATS = [
    ({"num_messages": 1024}, {"num_messages": 1025}, "chat.messages is 1025 messages; allowed: at most 1024"),
    ({"num_tools": 128}, {"num_tools": 129}, "chat.tools is 129 tools; allowed: at most 128"),
    (
        {"args": ["enable_thinking"]},
        {"args": ["x", "tools"]},
        "chat.template_args is tools; allowed: names other than messages, tools, add_generation_prompt",
    ),
    (
        {"continue_final_message": True, "add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": True},
        "chat.continue_final_message is true beside add_generation_prompt; allowed: one of the two",
    ),
]


@pytest.mark.parametrize(("good", "bad", "words"), CHATS)
def test_a_chat_at_its_limits_is_allowed_and_beyond_them_refused(good, bad, words):
    assert refusal(check_chat, make_chat(**good)) is None
    assert refusal(check_chat, make_chat(**bad)) == words


LENGTHS = [
    (9, {}, 1),
    (4, {}, 6),
    (4, {"max_tokens": 5}, 5),
    (4, {"max_tokens": 6, "min_tokens": 6}, 6),
    (4, {"min_tokens": 6}, 6),
]


@pytest.mark.parametrize(("num_prompt", "params", "max_tokens"), LENGTHS)
def test_the_wish_or_the_room_is_what_a_request_gets(num_prompt, params, max_tokens):
    assert validation.check_lengths([1] * num_prompt, pb.SamplingParams(**params), 10) == max_tokens


TOO_LONG = [
    (0, {}, "prompt is 0 tokens; allowed: at least 1 token"),
    (10, {}, "prompt is 10 tokens; allowed: below the model length 10, so that a token can follow"),
    (
        4,
        {"max_tokens": 7},
        "sampling_params.max_tokens is 7 beside a prompt of 4 tokens; allowed: at most 6: together the model length 10",
    ),
    (4, {"min_tokens": 7}, "sampling_params.min_tokens is 7; allowed: at most 6, the room that is left"),
]


@pytest.mark.parametrize(("num_prompt", "params", "words"), TOO_LONG)
def test_what_does_not_fit_the_model_is_refused(num_prompt, params, words):
    assert refusal(validation.check_lengths, [1] * num_prompt, pb.SamplingParams(**params), 10) == words


@pytest.mark.parametrize(("num_prompt", "params"), [(10, {}), (4, {"max_tokens": 7})])
def test_a_prompt_that_is_too_long_has_a_reason_for_programs(num_prompt, params):
    with pytest.raises(CallError) as caught:
        validation.check_lengths([1] * num_prompt, pb.SamplingParams(**params), 10)
    assert caught.value.reason == CONTEXT_LENGTH_EXCEEDED


def test_what_programs_need_not_tell_from_other_refusals_has_no_reason():
    with pytest.raises(CallError) as caught:
        check_request_id("\n")
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"temperature": 0}, {"temperature": -0.5}),
        ({"temperature": 2}, {"temperature": math.nan}),
        ({"temperature": 2}, {"temperature": math.inf}),
        ({"top_p": 0.5}, {"top_p": 0}),
        ({"top_p": 1}, {"top_p": 1.5}),
        ({"min_p": 0}, {"min_p": -0.5}),
        ({"min_p": 1}, {"min_p": 1.5}),
        ({"top_k": 0}, {"top_k": -1}),
        ({"repetition_penalty": 0.1}, {"repetition_penalty": 0}),
        ({"repetition_penalty": 100}, {"repetition_penalty": 100.5}),
        ({"repetition_penalty": 1}, {"repetition_penalty": math.nan}),
    ],
)
def test_bad_defaults_of_a_model_are_refused(good, bad):
    assert refusal(validation.check_effective, sampling(**good)) is None
    assert refusal(validation.check_effective, sampling(**bad)).startswith("sampling_params is temperature ")


def test_bad_defaults_are_shown_together():
    assert refusal(validation.check_effective, sampling(top_p=0, min_p=0.5)) == (
        "sampling_params is temperature 0, top_p 0, min_p 0.5, repetition_penalty 1.0; allowed: "
        "set these fields: the model's generation_config.json has bad defaults"
    )


CHOICES = [
    (
        {"allowed_token_ids": (1,)},
        {"allowed_token_ids": (1,), "bad_words_token_ids": ((2, 1),)},
        "allowed_token_ids",
        1,
    ),
    (
        {"allowed_token_ids": (1, 2), "bad_words_token_ids": ((2, 1),)},
        {"allowed_token_ids": (1, 2), "stop_token_ids": (1, 2), "min_tokens": 1},
        "allowed_token_ids",
        2,
    ),
    (
        {"bad_words_token_ids": ((0,), (1,)), "stop_token_ids": (2,)},
        {"bad_words_token_ids": ((0,), (1,)), "stop_token_ids": (2,), "min_tokens": 1},
        "bad_words",
        3,
    ),
]


@pytest.mark.parametrize(("good", "bad", "field", "count"), CHOICES)
def test_at_every_step_some_token_can_be_sampled(good, bad, field, count):
    assert refusal(validation.check_choosable, sampling(**good), 3) is None
    assert refusal(validation.check_choosable, sampling(**bad), 3) == (
        f"sampling_params.{field} is {count} ids that may all be forbidden at once; allowed: "
        "at least one id that ends no bad word and, with min_tokens, no text"
    )


@pytest.mark.parametrize(
    ("fields", "is_gateway", "words"),
    [
        ({}, False, "remote_decode is true; allowed: only by the gateway"),
        ({"resume": pb.Resume()}, True, "remote_decode is true beside resume; allowed: one of the two"),
        (
            {"sampling_params": pb.SamplingParams(n=2)},
            True,
            "sampling_params.n is 2; allowed: 1 where remote_decode is set",
        ),
    ],
)
def test_only_the_gateway_has_a_prompt_computed_alone_and_of_one_choice(fields, is_gateway, words):
    request = make_request(remote_decode=True, **fields)
    assert refusal(validation.check_request, request, VOCAB_SIZE, from_gateway=is_gateway) == words
    validation.check_request(make_request(remote_decode=True), VOCAB_SIZE, from_gateway=True)


def test_a_resumed_request_fits_and_has_a_known_seed():
    request = make_request(resume=pb.Resume(output_token_ids=[1, 2, 3]))
    assert refusal(validation.check_continuable, request, sampling(max_tokens=3)) is None
    assert refusal(validation.check_continuable, request, sampling(max_tokens=2)) == (
        "resume.output_token_ids is 3 tokens; allowed: at most max_tokens, 2"
    )
    assert refusal(validation.check_continuable, request, sampling(temperature=0.5)) == (
        "sampling_params.seed is missing; allowed: the seed that the first message told, as resume is set"
    )
    request.sampling_params.seed = 0
    assert refusal(validation.check_continuable, request, sampling(temperature=0.5)) is None
