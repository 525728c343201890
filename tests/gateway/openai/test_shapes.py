"""Answers, word by word, as OpenAI's APIs have them."""

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.blocks import Block
from dormouse_gateway.openai.responses.items import ITEMS
from dormouse_gateway.openai.shapes import CHAT, COMPLETION, Head, Piece, Token, ToldPrompt, ToolCall, finite

TOKENS = (Token("He", -0.5, (("He", -0.5), ("Hi", -1.5))), Token("\N{REPLACEMENT CHARACTER}", float("-inf")))
FIRST = Token("<s>", None)  # nothing stands before it


def call(*, is_cut=False, said='{"a": 1}'):
    return ITEMS["call"](Block(0, "call", said, name="look", id="c1"), "7", TOKENS, is_cut)


def call_item(status, arguments):
    known = {"id": "fc_7", "type": "function_call", "call_id": "c1", "name": "look"}
    return known | {"status": status, "arguments": arguments}


def test_a_call_is_told_by_its_beginning_its_arguments_and_its_end():
    assert call().begun() == [("response.output_item.added", {"item": call_item("in_progress", "")})]
    assert call().grown("{", TOKENS) == [
        ("response.function_call_arguments.delta", {"item_id": "fc_7", "delta": "{"}),
    ]
    assert call().ended() == [
        ("response.function_call_arguments.done", {"item_id": "fc_7", "name": "look", "arguments": '{"a": 1}'}),
        ("response.output_item.done", {"item": call_item("completed", '{"a": 1}')}),
    ]


def test_a_call_that_was_cut_is_incomplete():
    assert call(is_cut=True, said='{"a').done() == call_item("incomplete", '{"a')


def test_a_responses_tokens_are_told_with_their_bytes_as_far_as_they_are_known():
    text = ITEMS["text"](Block(0, "text", "He?"), "7", (*TOKENS, FIRST), False)
    ((_, told),) = text.grown("He?", (*TOKENS, FIRST))
    he = {"token": "He", "logprob": -0.5, "bytes": [72, 101]}
    hi = {"token": "Hi", "logprob": -1.5, "bytes": [72, 105]}
    assert told["logprobs"] == [
        he | {"top_logprobs": [he, hi]},
        {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -9999.0, "bytes": [], "top_logprobs": []},
        {"token": "<s>", "logprob": 0.0, "bytes": [60, 115, 62], "top_logprobs": []},
    ]


def test_a_chats_tokens_are_told_with_their_bytes_as_far_as_they_are_known():
    told = CHAT.part(Piece(0, "He?", (*TOKENS, FIRST)))["logprobs"]
    assert [(entry["token"], entry["logprob"], entry["bytes"]) for entry in told["content"]] == [
        ("He", -0.5, [72, 101]),
        ("\N{REPLACEMENT CHARACTER}", -9999.0, None),
        ("<s>", 0.0, [60, 115, 62]),
    ]
    assert told["refusal"] is None


@pytest.mark.parametrize("offset", [0, 5])
def test_a_completions_tokens_are_told_with_where_they_begin(offset):
    told = COMPLETION.part(Piece(0, "<s>He?", (FIRST, *TOKENS), offset=offset))["logprobs"]
    assert told == {
        "tokens": ["<s>", "He", "\N{REPLACEMENT CHARACTER}"],
        "token_logprobs": [None, -0.5, -9999.0],
        "top_logprobs": [None, {"He": -0.5, "Hi": -1.5}, {"\N{REPLACEMENT CHARACTER}": -9999.0}],
        "text_offset": [offset, offset + 3, offset + 5],
    }


def test_of_equal_texts_the_likelier_one_is_told():
    (top,) = COMPLETION.part(Piece(0, tokens=[Token("a", -2.0, (("b", -1.0), ("a", -2.0), ("b", -3.0)))]))["logprobs"][
        "top_logprobs"
    ]
    assert list(top.items()) == [("a", -2.0), ("b", -1.0)]


def test_an_echo_stands_before_the_text_and_its_tokens():
    echo = ToldPrompt(text="<s>", tokens=[FIRST], token_ids=[1])
    told = COMPLETION.whole(Piece(0, "He", TOKENS[:1], prompt=echo, token_ids=[2]))
    assert (told["text"], told["logprobs"]["tokens"]) == ("<s>He", ["<s>", "He"])
    assert (told["prompt_token_ids"], told["token_ids"]) == ([1], [2])


def test_an_echo_without_tokens_is_text_alone():
    told = COMPLETION.whole(Piece(0, "He", prompt=ToldPrompt(text="Oh. ")))
    assert (told["text"], told["logprobs"]) == ("Oh. He", None)


@pytest.mark.parametrize(("logprob", "told"), [(-1.0, -1.0), (float("-inf"), -9999.0), (-9998.5, -9998.5)])
def test_json_knows_no_infinity(logprob, told):
    assert finite(logprob) == told


USAGE = pb.Usage(
    prompt_tokens=7, completion_tokens=2, cached_tokens=4, accepted_prediction_tokens=3, rejected_prediction_tokens=1
)
TOLD_USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 2,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 1},
}
PROMPT = ToldPrompt(token_ids=(1, 2), logprobs=[None, {"2": {"logprob": -0.5}}])
TOLD_PROMPT = {"prompt_token_ids": [1, 2], "prompt_logprobs": [None, {"2": {"logprob": -0.5}}]}
CALL = ToolCall(0, '{"a": 1}', "look", "c1")
TOLD_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


def head(shape):
    return Head(shape, "7", "tiny", created_s=12)


def test_a_chat_in_one_piece_is_an_object_with_its_choices_its_prompt_and_its_usage():
    pieces = [Piece(0, "Hi", finish="stop", prompt=PROMPT, token_ids=(5,)), Piece(1, "", finish="tool_calls")]
    first = {"role": "assistant", "content": "Hi", "refusal": None}
    assert head(CHAT).whole(pieces, USAGE) == {
        "id": "chatcmpl-7",
        "object": "chat.completion",
        "created": 12,
        "model": "tiny",
        "choices": [
            {"index": 0, "message": first, "logprobs": None, "finish_reason": "stop", "token_ids": [5]},
            {"index": 1, "message": first | {"content": ""}, "logprobs": None, "finish_reason": "tool_calls"},
        ],
        "usage": TOLD_USAGE,
        **TOLD_PROMPT,
    }


def test_a_chats_events_are_chunks_of_which_the_first_tells_role_and_prompt():
    opening = {"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    assert CHAT.opening(1) == opening
    chunk = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 12, "model": "tiny"}
    assert head(CHAT).part([opening], PROMPT) == {**chunk, "choices": [opening], **TOLD_PROMPT}
    assert head(CHAT).part([]) == {**chunk, "choices": []}


def test_a_completion_tells_each_choices_prompt_with_it():
    told = head(COMPLETION).whole([Piece(0, "Hi", prompt=PROMPT), Piece(1, "Ho")], USAGE)
    plain = {"logprobs": None, "finish_reason": None}
    assert told == {
        "id": "cmpl-7",
        "object": "text_completion",
        "created": 12,
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hi", **plain, **TOLD_PROMPT}, {"index": 1, "text": "Ho", **plain}],
        "usage": TOLD_USAGE,
    }
    assert COMPLETION.opening(0) is None


def test_what_is_thought_and_called_stands_beside_what_is_said():
    message = CHAT.whole(Piece(0, "", reasoning="Hm.", calls=[CALL]))["message"]
    thought = {"reasoning_content": "Hm.", "reasoning": "Hm."}
    assert message == {"role": "assistant", "content": None, "refusal": None, **thought, "tool_calls": [TOLD_CALL]}
    assert CHAT.whole(Piece(0, "So:", calls=[CALL]))["message"]["content"] == "So:"
    assert CHAT.part(Piece(0, reasoning="Hm.", calls=[CALL]))["delta"] == {
        **thought,
        "tool_calls": [{"index": 0} | TOLD_CALL],
    }
    more = CHAT.part(Piece(2, calls=[ToolCall(3, "}")], finish="stop"))
    assert more == {
        "index": 2,
        "delta": {"tool_calls": [{"index": 3, "function": {"arguments": "}"}}]},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert CHAT.part(Piece(0, finish="stop"))["delta"] == {}
    assert CHAT.part(Piece(0))["delta"] == {"content": ""}


def test_a_chats_token_tells_the_likeliest_beside_it():
    [he] = CHAT.part(Piece(0, "He", TOKENS[:1]))["logprobs"]["content"]
    alone = {"token": "He", "logprob": -0.5, "bytes": [72, 101]}
    assert he == alone | {"top_logprobs": [alone, {"token": "Hi", "logprob": -1.5, "bytes": [72, 105]}]}


def test_images_are_counted_where_there_are_some():
    told = head(CHAT).whole([Piece(0)], pb.Usage(prompt_tokens=1, image_tokens=5))["usage"]
    assert told["prompt_tokens_details"] == {"cached_tokens": 0, "image_tokens": 5}
