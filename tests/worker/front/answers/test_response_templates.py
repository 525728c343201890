# ruff: noqa: E501  # answers stand as models write them
"""Answers are read by what their checkpoint says of them, as transformers reads it, and the same however they are cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_parsing import ResponseParser

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.answers.call_forms import HERMES
from dormouse_worker.front.answers.detection import families_of
from dormouse_worker.front.answers.events import Arguments
from dormouse_worker.front.answers.own_family import ALL, with_own
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.registry import BUILT_IN
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, read_response_template
from tests.worker.front.answers.corpus import TOOLS, Said, collected
from tests.worker.front.answers.response_corpus import OURS_ALONE, SAMPLES, TEMPLATES, Sample
from tests.worker.front.answers.test_families import pieces_of

NUM_SPLITS = 60


@pytest.mark.parametrize("name", SAMPLES)
def test_what_a_model_says_thinks_and_calls_is_told_apart(name: str):
    sample = SAMPLES[name]
    parser = sample.parser()
    assert collected([*parser.feed(sample.text), *parser.finish()]) == sample.says


@pytest.mark.parametrize("name", SAMPLES.keys() - OURS_ALONE)
def test_it_is_what_transformers_reads(name: str):
    sample = SAMPLES[name]
    tools = [{"type": "function", "function": {"name": key, "parameters": schema}} for key, schema in TOOLS.items()]
    theirs = ResponseParser(TEMPLATES[sample.template], prefix=sample.begun, tools=tools)
    events = theirs.feed(sample.text) + theirs.finalize()[1]
    told: dict[str, list[Any]] = {"content": [], "thinking": [], "tool_calls": []}
    for event in events:
        if event["type"] == "region_close":
            value, field = event["value"], event["field"].replace("reasoning_content", "thinking")
            told[field] += value if isinstance(value, list) else [value]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in told["tool_calls"]]
    says = sample.says
    assert ("".join(told["content"]), "".join(told["thinking"])) == (says.content, says.reasoning)
    assert calls == [(name, json.loads(arguments)) for name, arguments in says.calls]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_text_in_pieces_says_the_same(name: str):
    sample, rng = SAMPLES[name], random.Random(name)
    for pieces in ([*sample.text], *(pieces_of(sample.text, rng) for _ in range(NUM_SPLITS))):
        parser = sample.parser()
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert collected([*events, *parser.finish()]) == sample.says, pieces


@pytest.mark.parametrize("name", SAMPLES)
def test_arguments_are_json_wherever_the_text_ends_and_goes_on(name: str):
    sample = SAMPLES[name]
    for cut in range(len(sample.text)):
        ends, first, second = sample.parser(), sample.parser(), sample.parser()
        said = collected([*ends.feed(sample.text[:cut]), *ends.finish()])
        assert all(isinstance(json.loads(arguments), dict) for _, arguments in said.calls), sample.text[:cut]
        told = first.feed(sample.text[:cut])
        second.feed(sample.text[:cut])
        assert collected([*told, *second.feed(sample.text[cut:]), *second.finish()]) == sample.says, cut


def test_plain_arguments_come_while_they_are_written():
    parser = SAMPLES["chatml"].parser()
    parser.feed('<tool_call>{"name": "weather", "arguments": {"city": "Os')
    assert parser.feed("lo, the") == [Arguments(0, "lo, the")]


def test_what_is_not_asked_for_is_text_as_it_stands():
    sample = SAMPLES["chatml"]
    own = read_response_template(TEMPLATES["chatml"])
    parser = AnswerParser(Grammar(response=own, told=frozenset({"content"})), TOOLS)
    said = collected([*parser.feed(sample.text), *parser.finish()])
    assert (said.reasoning, said.calls) == ("", ())
    assert all(
        part in said.content
        for part in ("<think>\nWhich town?\n</think>", '{"name": "now", "arguments": {}}</tool_call>')
    )


def test_text_between_regions_that_nobody_asks_for_is_content_too():
    own = read_response_template({"start_anchor": "A", "fields": {"thinking": {}, "content": {"open": "<a>"}}})
    for told, says in ((ALL, Said("Yes.", "Hm.")), (frozenset({"content"}), Said("Hm.Yes."))):
        parser = AnswerParser(Grammar(response=own, told=told), {})
        assert collected([*parser.feed("Hm. <a>Yes."), *parser.finish()]) == says


PARTS = [
    *'{}[]",:<>|=\n',
    "a",
    "1",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '"name"',
    '"arguments"',
    "<|end|>",
    "<|says|>",
    "CALL a\n",
    "\x01",
    '<|"|>',
]


@given(text=st.lists(st.sampled_from(PARTS), max_size=25).map("".join))
def test_nothing_that_a_model_writes_breaks_a_template(text: str):
    for name in TEMPLATES:
        for lead in (
            "",
            '<tool_call>{"name": "a", "arguments": ',
            "<|tool_call>call:weather",
            "<|model|><|calls|>",
            "<tool_call><function=a>",
        ):
            sample = Sample(name, lead + text, Said())
            whole, cut = sample.parser(), sample.parser()
            said = collected([*whole.feed(sample.text), *whole.finish()])
            events = [event for character in sample.text for event in cut.feed(character)]
            assert collected([*events, *cut.finish()]) == said
            assert all(isinstance(json.loads(arguments), dict) for _, arguments in said.calls)


@pytest.mark.parametrize("expression", ["x*", r"(?:a|aa)+$", r"(a+)+b", r"(?=c)|", "[^b]*b"])
def test_no_expression_holds_an_answer_for_ever(expression: str):
    spec = {
        "start_anchor": "A",
        "fields": {"thinking": {"open_pattern": expression, "close_pattern": expression}, "content": {}},
    }
    text = "a" * 400 + "c" + "a" * 400
    parser = AnswerParser(Grammar(response=read_response_template(spec), told=ALL), {})
    said = collected([*(event for character in text for event in parser.feed(character)), *parser.finish()])
    assert len(said.content) + len(said.reasoning) <= len(text)


def chosen(own: str, chat_template: str = "<tool_call> <think>", **said: str) -> tuple[str, str]:
    return families_of(
        chat_template, EngineSettings(model="m", **said), BUILT_IN, read_response_template(TEMPLATES[own])
    )


def test_a_checkpoints_own_words_go_before_the_families_and_settings_before_both():
    assert chosen("chatml") == (RESPONSE_TEMPLATE, RESPONSE_TEMPLATE)
    assert chosen("chatml", tool_call_parser="hermes") == ("hermes", "think")
    assert chosen("chatml", tool_call_parser="none") == ("", RESPONSE_TEMPLATE)
    assert chosen("chatml", reasoning_parser="think") == (RESPONSE_TEMPLATE, "think")
    assert chosen("chatml", tool_call_parser=RESPONSE_TEMPLATE, reasoning_parser="none") == (RESPONSE_TEMPLATE, "")
    assert chosen("chatml", reasoning_parser=RESPONSE_TEMPLATE) == (RESPONSE_TEMPLATE, RESPONSE_TEMPLATE)


def test_grammars_write_calls_as_the_chat_template_shows_them_if_they_are_read_so():
    def own(name: str, shown: str):
        return with_own(BUILT_IN, read_response_template(TEMPLATES[name]), shown)

    both = own("chatml", "<tool_call> <think>")
    assert both.tools[RESPONSE_TEMPLATE].strict == (HERMES,)
    assert both.reasoning[RESPONSE_TEMPLATE].closing == "</think>"
    alone = own("chatml", "").reasoning[RESPONSE_TEMPLATE]
    assert (alone.name, alone.opening, alone.closing) == (RESPONSE_TEMPLATE, "<think>", "</think>")
    shown = own("lines", "<think>").reasoning[RESPONSE_TEMPLATE]
    for family in (both.tools[RESPONSE_TEMPLATE], own("tags", "").tools[RESPONSE_TEMPLATE], shown):
        assert (family.name, family.template) == (RESPONSE_TEMPLATE, ()), "no other template is of this family"
    assert own("tags", "<tool_call>").tools[RESPONSE_TEMPLATE].strict == ()
    assert own("tags", "<function=<parameter=").tools[RESPONSE_TEMPLATE].strict
    assert own("lines", "<think>").reasoning[RESPONSE_TEMPLATE].opening == "<think>"
    assert RESPONSE_TEMPLATE not in own("lines", "").reasoning
    assert with_own(BUILT_IN, None, "<tool_call>") is BUILT_IN


def test_an_answer_begins_behind_the_last_anchor_of_its_prompt():
    own = read_response_template(TEMPLATES["dialect"])
    assert (
        own.begun("<|turn>model\nHi<turn|><|turn>user\nAgain<|turn>model\n<|channel>thought\n") == "<|channel>thought\n"
    )
    assert own.begun("<result|>") == ""
    assert own.begun("no turn") is None
