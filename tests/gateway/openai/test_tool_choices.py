"""Which functions a model is shown, and what it has to call: every kind of choice, and choices of what is not there."""

from __future__ import annotations

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.tools import offered, parsing


def named(name):
    return {"type": "function", "function": {"name": name}}


def allowed(mode, *names):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def body(choice=None, **more):
    return {"tools": [named("f"), named("g")], **({} if choice is None else {"tool_choice": choice}), **more}


BOTH = pb.AnswerParsing(reasoning=True, tool_calls=True)


@pytest.mark.parametrize(
    ("choice", "shown", "asked"),
    [
        (None, ["f", "g"], BOTH),
        ("auto", ["f", "g"], BOTH),
        ("none", [], pb.AnswerParsing(reasoning=True)),
        ("required", ["f", "g"], pb.AnswerParsing(reasoning=True, tool_calls=True, any_function=True)),
        (named("g"), ["f", "g"], pb.AnswerParsing(reasoning=True, tool_calls=True, function="g")),
        (allowed("auto", "g"), ["g"], BOTH),
        (
            allowed("required", "g", "f"),
            ["f", "g"],
            pb.AnswerParsing(reasoning=True, tool_calls=True, any_function=True),
        ),
    ],
)
def test_a_choice_says_what_is_shown_and_what_has_to_be_called(choice, shown, asked):
    assert [function["name"] for function in offered(body(choice))] == shown
    assert parsing(body(choice)) == asked


@pytest.mark.parametrize("parallel", [None, True, False])
def test_one_call_is_asked_for_only_where_several_are_forbidden(parallel):
    assert parsing(body(parallel_tool_calls=parallel)).single_call is (parallel is False)
    assert not parsing(body("none", parallel_tool_calls=parallel)).single_call


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_without_tools_there_is_nothing_to_choose(choice):
    assert offered({"tool_choice": choice}) == offered({}) == []
    assert parsing({"tool_choice": choice, "tools": []}) == pb.AnswerParsing(reasoning=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tool_choice": "required"}, "set without tools; allowed: at least one tool"),
        ({"tool_choice": named("f"), "tools": []}, "set without tools; allowed: at least one tool"),
        (body(named("h")), "the function 'h'; allowed: one of tools"),
        (body(allowed("auto", "f", "h")), "the function 'h'; allowed: one of tools"),
        (body(named("h" * 65)), f"the function '{'h' * 64}'; allowed: one of tools"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(wrong, words):
    for read in (offered, parsing):
        with pytest.raises(ApiError, match=f"tool_choice is {words}") as caught:
            read(wrong)
        assert caught.value.param == "tool_choice"
