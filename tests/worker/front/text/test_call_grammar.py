"""Grammars of calls take what fits the tools' schemas, and nothing else; thoughts may come before."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from dormouse_api.limits import MAX_STRUCTURED_OUTPUTS_BYTES
from dormouse_worker.common.grammar import GrammarRefused, compile_grammar, make_tokenizer
from dormouse_worker.front.answers.families import TOOL_FAMILIES
from dormouse_worker.front.testing import EOS, write_model
from dormouse_worker.front.text.call_grammar import MAX_FORCED_CALLS, calls_grammar
from dormouse_worker.front.text.grammar_text import to_text

NAMED = {"properties": {"city": {"$ref": "#/$defs/name"}}, "required": ["city"], "$defs": {"name": {"type": "string"}}}
TOOLS = [("weather", NAMED), ("now", {"type": "object", "properties": {}})]
MARK = 258  # a special token
ONE = {"form": "arguments", "tools": TOOLS[:1]}
LIST = {"form": "list", "tools": TOOLS, "is_single": False}
HERMES = TOOL_FAMILIES["hermes"].strict
TAGS = {
    "form": "tags",
    "tools": TOOLS,
    "is_single": False,
    "forms": [*map(asdict, HERMES)],
    "noise": [],
    "thinking": [],
    "special": {},
}
WEATHER, NOW = '{"name": "weather", "parameters": {"city": "x"}}', '{"name": "now", "parameters": {}}'
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call>'
THINK = {"opening": "<think>", "closing": "</think>", "has_begun": False, "opening_id": None, "closing_id": None}
BEGUN = {**THINK, "has_begun": True}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(write_model(tmp_path_factory.mktemp("model")) / "tokenizer.json", [EOS])


@pytest.fixture
def takes(tokenizer):
    """Return whether a grammar takes a text, and may end behind it. A number is a token."""

    def check(value, /, *texts, thoughts=None, **order):
        order = {"kind": "calls", "value": value, "thoughts": thoughts, **order}
        matcher = compile_grammar(tokenizer, to_text(order))
        ids = [i for text in texts for i in ([text] if isinstance(text, int) else tokenizer.tokenize_str(text))]
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check


def test_arguments_of_one_function_fit_its_schema_and_have_no_other_members(takes):
    assert takes(ONE, '{"city": "Oslo"}')
    assert not takes(ONE, "{}")
    assert not takes(ONE, '{"city": 1}')
    assert not takes(ONE, '{"city": "Oslo", "days": 1}')
    assert takes({"form": "arguments", "tools": [("any", {})]}, "{}")


def test_arguments_may_be_one_of_several_objects(takes):
    either = {
        "anyOf": [NAMED, {"properties": {"here": {"const": True}}, "required": ["here"]}],
        "$defs": NAMED["$defs"],
    }
    asked = {"form": "arguments", "tools": [("weather", either)]}
    assert takes(asked, '{"here": true}')
    assert takes(asked, '{"city": "Oslo"}')
    assert not takes(asked, '{"here": true, "days": 1}')


def test_a_list_has_one_call_or_more_each_with_its_own_schema(takes):
    assert takes(LIST, f"[{WEATHER}]")
    assert takes(LIST, f"[{NOW}, {WEATHER}]")
    assert not takes(LIST, "[]")
    assert not takes(LIST, f"[{WEATHER.replace('weather', 'now')}]")
    assert takes(LIST, f"[{', '.join([NOW] * MAX_FORCED_CALLS)}]")
    assert not takes(LIST, f"[{', '.join([NOW] * (MAX_FORCED_CALLS + 1))}]")


TAG = json.dumps({"structures": [{"begin": "<f>", "schema": NAMED, "end": "</f>"}], "triggers": ["<f>"]})
ASKED = {"disable_any_whitespace": False, "disable_additional_properties": False}


@pytest.mark.parametrize(
    ("value", "order", "lead", "end"),
    [
        (ONE, {}, "", ""),
        ({**TAGS, "forms": TAGS["forms"][:1]}, {}, CALL[: CALL.index('{"city')], "}\n</tool_call>"),
        (json.dumps(NAMED), {"kind": "json_schema", **ASKED}, "", ""),
        (TAG, {"kind": "structural_tag", **ASKED}, "<f>", "</f>"),
    ],
)
def test_blanks_between_the_parts_of_json_are_a_space_or_a_line_with_its_indentation(takes, value, order, lead, end):
    for pretty in ('{"city": "x"}', '{"city":"x"}', '{\n\t"city" : "x"\r\n}', "{\n" + 20 * " " + '"city": "x"}'):
        assert takes(value, lead + pretty + end, **order), pretty
    for blanks in ("  ", "\t", "\n\n", "\n" + 21 * " "):
        assert not takes(value, f'{lead}{{{blanks}"city": "x"}}{end}', **order), blanks


def test_where_one_call_is_wanted_a_list_has_no_second(takes):
    assert takes({**LIST, "is_single": True}, f"[{NOW}]")
    assert not takes({**LIST, "is_single": True}, f"[{NOW}, {NOW}]")


@pytest.mark.parametrize("text", ["Hello.", "", CALL, f"I look. {CALL}\n{CALL} So.", "a <tool> b"])
def test_behind_a_trigger_stands_a_call_and_anything_elsewhere(takes, text):
    assert takes(TAGS, text)


@pytest.mark.parametrize("text", ["<tool_call>", CALL.replace("city", "town"), CALL.replace("weather", "rain")])
def test_behind_a_trigger_stands_nothing_but_a_call_of_a_tool(takes, text):
    assert not takes(TAGS, text)


def test_a_trigger_may_be_a_special_token(takes):
    special, call = {**TAGS, "special": {"<tool_call>": MARK}}, CALL.removeprefix("<tool_call>")
    assert takes(special, "a", MARK, call, MARK, call, "b")
    assert takes(special, "a")
    assert not takes(special, MARK, "b")


def test_thoughts_may_come_before_and_have_to_where_they_have_begun(takes):
    arguments = '{"city": "x"}'
    for thoughts, text in ((THINK, f"<think>a {{</think>\n\n{arguments}"), (BEGUN, f"a</thi</think>{arguments}")):
        assert takes(ONE, text, thoughts=thoughts)
        assert not takes(ONE, text.replace("</think>", ""), thoughts=thoughts)
    assert takes(ONE, arguments, thoughts=THINK)
    assert not takes(ONE, arguments, thoughts=BEGUN)
    special = {**BEGUN, "closing_id": MARK}
    assert takes(ONE, "a", MARK, f"\n{arguments}", thoughts=special)
    assert takes(ONE, MARK, arguments, thoughts=special)
    assert not takes(ONE, "a", arguments, thoughts=special)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("json_object", True, "{}"),
        ("json_schema", '{"const": 1}', "1"),
        ("regex", "a+", "aa"),
        ("choice", ["a", "b"], "b"),
        ("grammar", 'start: "x" thought\nthought: "y"', "xy"),
        ("structural_tag", '{"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<f"]}', "a<f>1"),
    ],
)
def test_thoughts_may_come_before_whatever_is_bound(takes, kind, value, text):
    order = {"kind": kind, "disable_any_whitespace": False, "disable_additional_properties": False, "thoughts": THINK}
    for whole in (text, f"<think>?</think>\n{text}"):
        assert takes(value, whole, **order)


def test_calls_may_come_instead_of_whatever_is_bound_and_behind_thoughts(takes):
    order = {"kind": "json_object", "disable_any_whitespace": False, "disable_additional_properties": False}
    for thoughts, lead in ((None, ""), (THINK, "<think>?</think>\n")):
        either = {**order, "calls": TAGS, "thoughts": thoughts}
        for text in ("{}", CALL, f"{CALL}\n{CALL}"):
            assert takes(True, lead + text, **either)
        for text in (f"{{}}{CALL}", f"{CALL}{{}}", f"{CALL} a", CALL.replace("city", "town"), "a"):
            assert not takes(True, lead + text, **either)
        single = {**either, "calls": {**TAGS, "is_single": True}}
        assert takes(True, lead + CALL, **single)
        assert not takes(True, f"{lead}{CALL}\n{CALL}", **single)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "the parameters of 'f' are of type 'string'; object is needed"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "the parameters of 'f' need themselves"),
        ({"x-guidance": {}}, "x-guidance in the parameters of 'f'"),
        ({"description": "x" * MAX_STRUCTURED_OUTPUTS_BYTES}, f"more than {MAX_STRUCTURED_OUTPUTS_BYTES}"),
    ],
)
def test_tools_that_no_grammar_is_made_of_are_refused_by_name(schema, words):
    with pytest.raises(GrammarRefused, match=words):
        calls_grammar({"form": "arguments", "tools": [("f", schema)]})


def test_a_name_is_written_as_json_whatever_it_is(takes):
    name = 'f"\\ é\n'
    calls = {**LIST, "tools": [(name, {})], "is_single": True}
    assert takes(calls, f'[{{"name": {json.dumps(name)}, "parameters": {{}}}}]')
