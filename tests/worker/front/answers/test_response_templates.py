# ruff: noqa: E501  # answers stand as models write them
"""Answers are read by what their checkpoint says of them, as transformers reads it, and the same however they are cut."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
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
from dormouse_worker.front.answers.response_calls import Unsupported
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, read_response_template
from tests.worker.front.answers.corpus import NOW, OSLO, TOOLS, Said, collected
from tests.worker.front.answers.test_families import pieces_of

NUM_SPLITS = 60
CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TEMPLATES: dict[str, dict[str, Any]] = {
    "chatml": {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>", "content": "text"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": CALL,
            },
            "content": {"close": ["<|im_end|>", "<|endoftext|>"]},
        },
    },
    "actions": {  # every part in regions, calls as a list with names of its own
        "version": 1,
        "start_anchor_pattern": r"<\|chatbot\|>",
        "fields": {
            "content": {"open": "<|reply|>", "close": "<|end_reply|>"},
            "thinking": {"open": "<|plan|>", "close": "<|end_plan|>"},
            "tool_calls": {
                "open": "<|action|>",
                "close": "<|end_action|>",
                "content": "json",
                "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{with}"}},
            },
        },
    },
    "channels": {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "repeats": True,
                "content": "json",
                "transform": NAMED,
            },
        },
    },
    "tags": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": NAMED,
            },
            "content": {},
        },
    },
    "dialect": {
        "start_anchor": ["<|turn>model\n", "<result|>"],
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": NAMED,
            },
            "content": {"close": ["<turn|>", "<eos>"]},
        },
    },
    "blocks": {
        "start_anchor": "<|model|>",
        "fields": {
            "thinking": {
                "open_pattern": r"(?:<\|model\|>)?[^<]*<\|thinks\|>",
                "close": "<|end|>",
                "repeats": True,
                "join": "",
                "content_args": {"strip": False},
            },
            "content": {
                "open_pattern": r"(?:<\|model\|>)?[^<]*<\|says\|>",
                "close": "<|end|>",
                "repeats": True,
                "join": " ",
                "content_args": {"strip": False},
            },
            "tool_calls": {
                "open_pattern": r"(?:<\|model\|>)?[^<]*<\|calls\|>",
                "close": "<|end|>",
                "repeats": True,
                "content": "json",
                "transform": {
                    "type": "function",
                    "function": {"name": "{content.name}", "arguments": "{content.args}"},
                },
            },
        },
    },
    "lines": {
        "start_anchor": "A:",
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "content": {"open": "<reply>\n", "close_pattern": r"\n?</reply>"},
            "tool_calls": {
                "open_pattern": r"CALL (?P<name>\w+)\n",
                "close": "\nEND",
                "content": "kv-lines",
                "content_args": {"kv_sep": "=", "value_parser": {"name": "text"}},
                "repeats": True,
                "transform": NAMED,
            },
        },
    },
}


@dataclass(frozen=True)
class Sample:
    """An answer, and what it says."""

    template: str
    text: str
    says: Said
    begun: str = ""

    def parser(self) -> AnswerParser:
        own = read_response_template(TEMPLATES[self.template])
        return AnswerParser(Grammar(response=own, told=ALL, begun=self.begun), TOOLS)


SAMPLES = {
    "chatml": Sample(
        "chatml",
        '<think>\nWhich town?\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n<tool_call>{"name": "now", "arguments": {}}</tool_call><|im_end|>',
        Said("I look.", "Which town?", (OSLO, NOW)),
    ),
    "chatml, begun by the prompt": Sample("chatml", "1 + 1\n</think>\nTwo.", Said("Two.", "1 + 1"), "<think>\n"),
    "chatml, half a marker": Sample("chatml", "a < b <tool b", Said("a < b <tool b")),
    "chatml, a closing marker within a string": Sample(
        "chatml",
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
        Said(calls=(("weather", '{"city":"</tool_call>"}'),)),
    ),
    "chatml, no call": Sample(
        "chatml", "So <tool_call>{city}</tool_call> it is", Said("So <tool_call>{city}</tool_call> it is")
    ),
    "chatml, more behind a call": Sample(
        "chatml",
        '<tool_call>{"name": "now", "arguments": {}} and</tool_call>',
        Said("and</tool_call>", calls=(NOW,)),
    ),
    "chatml, cut": Sample(
        "chatml",
        '<tool_call>{"name": "weather", "arguments": {"city": "Os',
        Said(calls=(("weather", '{"city":"Os"}'),)),
    ),
    "actions": Sample(
        "actions",
        '<|plan|>Ask.<|end_plan|><|action|>[\n {"id": "0", "tool": "weather", "with": {"city": "Oslo", "days": 2}},\n {"tool": "now", "with": {}}\n]<|end_action|><|eot|>',
        Said("", "Ask.", (OSLO, NOW)),
    ),
    "actions, a reply": Sample("actions", "<|reply|>Hello, you<|end_reply|>", Said("Hello, you")),
    "actions, without any": Sample("actions", "Hello, you", Said("Hello, you")),
    "channels": Sample(
        "channels",
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>',
        Said("", "Hm.", (OSLO,)),
    ),
    "channels, final": Sample(
        "channels",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        Said("Yes.", "Hm."),
    ),
    "tags": Sample(
        "tags",
        "<think>Hm</think>\nI look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        Said("I look.", "Hm", (OSLO, NOW)),
    ),
    "tags, a text of digits": Sample(
        "tags",
        "<tool_call><function=weather><parameter=city>12</parameter></function></tool_call>",
        Said(calls=(("weather", '{"city":"12"}'),)),
    ),
    "dialect": Sample(
        "dialect",
        '<|channel>thought\nHm.<channel|><|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>',
        Said("", "Hm.", (OSLO, NOW)),
    ),
    "dialect, braces in a string": Sample(
        "dialect",
        '<|tool_call>call:weather{city:<|"|>a,b:"}<|"|>}<tool_call|>So.<turn|>',
        Said("So.", calls=(("weather", '{"city":"a,b:\\"}"}'),)),
    ),
    "dialect, no JSON": Sample(
        "dialect", "<|tool_call>call:now{days:}<tool_call|>", Said("<|tool_call>call:now{days:}<tool_call|>")
    ),
    "blocks": Sample(
        "blocks",
        'me<|thinks|> a <|end|><|model|><|thinks|>b<|end|><|model|><|says|>One.<|end|><|model|>x<|says|> Two.\n<|end|><|model|><|calls|>{"name": "weather", "args": {"city": "Oslo", "days": 2}}<|end|>',
        Said("One.  Two.\n", " a b", (OSLO,)),
    ),
    "lines": Sample(
        "lines",
        "Hm.\n</think>\n\nCALL weather\ncity=Oslo\ndays = 2\nEND\n<reply>\nDone.\n</reply>",
        Said("Done.", "Hm.", (OSLO,)),
    ),
}
OURS_ALONE = {  # transformers raises, tells the last text only, or cuts at a marker within a string
    *("chatml, a closing marker within a string", "chatml, no call", "chatml, more behind a call", "chatml, cut"),
    *("actions, without any", "tags, a text of digits", "dialect, no JSON", "blocks"),
}


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
    own = read_response_template(template(thinking={}, content={"open": "<a>"}))
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


def template(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "A", "fields": fields}


CALLS = {"open": "<c>", "close": "</c>", "content": "json"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ([], "response_template is no object"),
        ({**template(content={}), "version": 2}, "response_template.version is 2"),
        ({**template(content={}), "schema": {}}, "response_template.schema is unknown"),
        (
            {**template(content={}), "defaults": {"role": "assistant", "content": "Hi"}},
            "response_template.defaults.content",
        ),
        ({**template(content={}), "defaults": 1}, "response_template.defaults is no object"),
        ({"fields": {"content": {}}}, "neither start_anchor nor start_anchor_pattern"),
        ({"start_anchor": "A"}, "response_template.fields is no object"),
        (template(citations={"open": "<c>"}), "response_template.fields.citations is unknown; fields are content"),
        (template(content=1), "response_template.fields.content is no object"),
        (template(content={"opens": "a"}), "response_template.fields.content.opens is unknown"),
        (template(content={}, thinking={}), "more than one has neither open nor open_pattern"),
        (template(content={"open": ""}), "response_template.fields.content.open is no text"),
        (template(content={"open": "a", "open_pattern": "a"}), "has both open and open_pattern"),
        (template(content={"open_pattern": "("}), "response_template.fields.content.open_pattern is no expression"),
        (template(content={"content": "json"}), "response_template.fields.content.content is 'json'; text is known"),
        (template(content={"transform": "{content}"}), "response_template.fields.content.transform"),
        (template(content={"repeats": True}), "response_template.fields.content.repeats without join"),
        (template(content={"repeats": True, "join": 1}), "response_template.fields.content.join is no string"),
        (template(content={"content_args": {"strip": 1}}), "response_template.fields.content.content_args"),
        (template(tool_calls={"close": "</c>"}), "response_template.fields.tool_calls has neither open nor"),
        (template(tool_calls={**CALLS, "content": "yaml"}), "content is 'yaml'; there are json"),
        (template(tool_calls={**CALLS, "content": "text"}), "content is text; of calls it is json"),
        (template(tool_calls={**CALLS, "content_args": {"lax": 1}}), "content_args.lax: json takes"),
        (
            template(tool_calls={**CALLS, "content_args": {"string_delims": [["a"]]}}),
            "string_delims is no list of pairs",
        ),
        (template(tool_calls={**CALLS, "content": "kv-lines", "content_args": {"kv_sep": ""}}), "kv_sep is no text"),
        (template(tool_calls={**CALLS, "content": "xml-inline"}), "tag_pattern is no expression"),
        (
            template(tool_calls={**CALLS, "content": "xml-inline", "content_args": {"tag_pattern": "a"}}),
            "has no group key",
        ),
        (
            template(tool_calls={**CALLS, "content": "kv-lines", "content_args": {"value_parser": 1}}),
            "value_parser is no object",
        ),
        (template(tool_calls={**CALLS, "join": ""}), "join: calls are not joined"),
        (template(tool_calls={**CALLS, "transform": {"call": 1}}), "transform is no function with name and arguments"),
        (
            template(tool_calls={**CALLS, "transform": {**NAMED, "at": 1}}),
            "transform has more than type, function and id",
        ),
        (template(tool_calls={**CALLS, "transform": NAMED}), "transform.name: 'name' is neither content nor a group"),
        (
            template(tool_calls={**CALLS, "transform": {"name": "x", "arguments": "{content}"}}),
            "transform.name is 'x'; it has to be one placeholder",
        ),
        (
            template(tool_calls={**CALLS, "content": "kv-lines", "transform_each": True}),
            "transform_each is of content json",
        ),
    ],
)
def test_what_of_the_format_is_not_kept_is_refused_by_name(spec: Any, words: str):
    with pytest.raises(Unsupported) as refused:
        read_response_template(spec)
    assert words in str(refused.value)


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


def test_grammars_write_calls_as_the_chat_template_shows_them_if_they_are_read_so():
    def own(name: str, shown: str):
        return with_own(BUILT_IN, read_response_template(TEMPLATES[name]), shown)

    both = own("chatml", "<tool_call> <think>")
    assert both.tools[RESPONSE_TEMPLATE].strict == (HERMES,)
    assert both.reasoning[RESPONSE_TEMPLATE].closing == "</think>"
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
