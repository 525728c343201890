# ruff: noqa: E501  # answers stand as models write them
"""Answers as models of each family write them, and what they say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dormouse_worker.front.answers.events import Arguments, CallBegins, Content, Event, Reasoning
from dormouse_worker.front.answers.families import HARMONY, REASONING_FAMILIES, TOOL_FAMILIES
from dormouse_worker.front.answers.parser import AnswerParser, Grammar

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object", "properties": {}},
}
OSLO = ("weather", '{"city":"Oslo","days":2}')
NOW = ("now", "{}")


@dataclass(frozen=True)
class Said:
    """What came of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Sample:
    """An answer, and what it says."""

    text: str
    says: Said
    tools: str = ""
    reasoning: str = ""
    begins_in_reasoning: bool = False
    forced: str | None = None
    grammar: Grammar = field(init=False)

    def __post_init__(self) -> None:
        grammar = Grammar(
            tools=TOOL_FAMILIES.get(self.tools),
            reasoning=REASONING_FAMILIES.get(self.reasoning),
            begins_in_reasoning=self.begins_in_reasoning,
            is_harmony=self.tools == HARMONY,
            forced=self.forced,
        )
        object.__setattr__(self, "grammar", grammar)

    def parser(self) -> AnswerParser:
        return AnswerParser(self.grammar, TOOLS)


def collected(events: list[Event]) -> Said:
    """Return what events say; a call's arguments come behind its begin and before the next call."""
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, CallBegins):
            assert event.index == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, Arguments):
            assert event.index == len(calls) - 1
            calls[-1][1] += event.text
    return Said(
        "".join(event.text for event in events if isinstance(event, Content)),
        "".join(event.text for event in events if isinstance(event, Reasoning)),
        tuple((name, arguments) for name, arguments in calls),
    )


_HERMES_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
_BOTH = Said(calls=(OSLO, NOW))

SAMPLES = {
    "plain": Sample(" Hello,  you \n", Said(" Hello,  you \n")),
    "plain with a marker": Sample("a <tool_call> b", Said("a <tool_call> b")),
    "hermes": Sample(f"I look.\n{_HERMES_CALL}", Said("I look.", calls=(OSLO,)), "hermes"),
    "hermes twice": Sample(f'{_HERMES_CALL}\n<tool_call>{{"name": "now"}}</tool_call>', _BOTH, "hermes"),
    "hermes, arguments first": Sample(
        '<tool_call>{"arguments": {"city": "Oslo", "days": 2}, "name": "weather"}</tool_call>',
        Said(calls=(OSLO,)),
        "hermes",
    ),
    "hermes, arguments in a string": Sample(
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 2}"}</tool_call>',
        Said(calls=(OSLO,)),
        "hermes",
    ),
    "hermes, no JSON in a string": Sample(
        '<tool_call>{"name": "weather", "arguments": "{\\"days\\": [NaN, 1e999]}"}</tool_call>',
        Said("}</tool_call>", calls=(("weather", "{}"),)),
        "hermes",
    ),
    "hermes, null": Sample('<tool_call>{"name": "now", "arguments": null}</tool_call>', Said(calls=(NOW,)), "hermes"),
    "hermes, no end": Sample('<tool_call>{"name": "now", "arguments": {}}', Said(calls=(NOW,)), "hermes"),
    "hermes, no call": Sample(
        "<tool_call>{city: Oslo}</tool_call> sorry", Said("<tool_call>{city: Oslo}</tool_call> sorry"), "hermes"
    ),
    "hermes, no call between words": Sample(
        "Write\n\n<tool_call> {} </tool_call> so. ", Said("Write\n\n<tool_call> {} </tool_call> so. "), "hermes"
    ),
    "hermes, cut within arguments": Sample(
        '<tool_call>{"name": "weather", "arguments": {"city": "Os',
        Said(calls=(("weather", '{"city":"Os"}'),)),
        "hermes",
    ),
    "hermes, cut within a key": Sample(
        '<tool_call>{"name": "weather", "arguments": {"days": 2, "ci',
        Said(calls=(("weather", '{"days":2}'),)),
        "hermes",
    ),
    "hermes, wrong within arguments": Sample(
        '<tool_call>{"name": "weather", "arguments": {"days": two}} end',
        Said("}} end", calls=(("weather", "{}"),)),
        "hermes",
    ),
    "hermes, line break in a string": Sample(
        '<tool_call>{"name": "weather", "arguments": {"city": "a\nb\\x\\u00e4"}}</tool_call>',
        Said(calls=(("weather", '{"city":"a\\nb\\\\x\\u00e4"}'),)),
        "hermes",
    ),
    "hermes that thinks": Sample(
        f"<think>\nWhich town?\n</think>\n\n{_HERMES_CALL}", Said("", "Which town?", (OSLO,)), "hermes", "think"
    ),
    "think": Sample("<think>\n1 + 1\n\n</think>\n\nTwo.", Said("Two.", "1 + 1"), "", "think"),
    "think, begun by the prompt": Sample("1 + 1\n</think>\nTwo.", Said("Two.", "1 + 1"), "", "think", True),
    "think, never ended": Sample("<think>1 + ", Said("", "1 +"), "", "think"),
    "no think": Sample(" Two <think>", Said(" Two <think>"), "", "think"),
    "llama": Sample(
        '{"type": "function", "name": "weather", "parameters": {"city": "Oslo", "days": 2}}; {"name": "now", "parameters": {}}',
        _BOTH,
        "llama3_json",
    ),
    "llama, tagged": Sample(
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}',
        Said(calls=(OSLO,)),
        "llama3_json",
    ),
    "llama, JSON that is no call": Sample(
        ' {"title": "weather", "rows": [1, 2]}', Said(' {"title": "weather", "rows": [1, 2]}'), "llama3_json"
    ),
    "llama, no tool": Sample(
        '{"name": "Bob", "parameters": {}}', Said('{"name": "Bob", "parameters": {}}'), "llama3_json"
    ),
    "mistral": Sample(
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}, {"name": "now", "arguments": {}}]',
        _BOTH,
        "mistral",
    ),
    "mistral, names before arguments": Sample(
        'Well.[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{"city": "Oslo", "days": 2}[TOOL_CALLS]now[ARGS]{}',
        Said("Well.", calls=(OSLO, NOW)),
        "mistral",
    ),
    "mistral that thinks": Sample("[THINK]Hm.[/THINK]Yes.", Said("Yes.", "Hm."), "mistral", "mistral"),
    "pythonic": Sample("[weather(city='Oslo', days=2), now()]", _BOTH, "pythonic"),
    "pythonic, tagged": Sample(
        '<|python_start|>[weather(city="Oslo", days=2)]<|python_end|>', Said(calls=(OSLO,)), "pythonic"
    ),
    "pythonic, nested": Sample(
        "[weather(city=[{'a': (1, None)}], days=True)]",
        Said(calls=(("weather", '{"city":[{"a":[1,null]}],"days":true}'),)),
        "pythonic",
    ),
    "pythonic, a list": Sample("[1, 2] are numbers", Said("[1, 2] are numbers"), "pythonic"),
    "pythonic, an expression": Sample("[weather(days=1+x)]", Said(")]", calls=(("weather", "{}"),)), "pythonic"),
    "pythonic, quotes and brackets in strings": Sample(
        '[weather(city=\'O\\\'s "l)],o\\\\\', days=2), weather(city="a\'\\"(", days=[{"b": [1]}, 3])]',
        Said(
            calls=(
                ("weather", '{"city":"O\'s \\"l)],o\\\\","days":2}'),
                ("weather", '{"city":"a\'\\"(","days":[{"b":[1]},3]}'),
            )
        ),
        "pythonic",
    ),
    "pythonic, words of JSON": Sample(
        "[weather(city=null, days=true)]", Said(calls=(("weather", '{"city":null,"days":true}'),)), "pythonic"
    ),
    "pythonic, with spaces": Sample(
        "[ weather ( city = 'Oslo' , days = 2 ) , now ( ) ] so", Said("so", calls=(OSLO, NOW)), "pythonic"
    ),
    "pythonic, no tool": Sample("[ask(n=1)]", Said("[ask(n=1)]"), "pythonic"),
    "pythonic, no number": Sample("[weather(days=1e999)]", Said(")]", calls=(("weather", "{}"),)), "pythonic"),
    "deepseek_v3": Sample(
        "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"city": "Oslo", "days": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n'
        "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Said("Yes.", calls=(OSLO, NOW)),
        "deepseek_v3",
    ),
    "deepseek_v31": Sample(
        "<think>Hm</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"city": "Oslo", "days": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        Said("", "Hm", (OSLO,)),
        "deepseek_v31",
        "think",
    ),
    "granite": Sample(
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}, {"name": "now", "arguments": {}}]',
        _BOTH,
        "granite",
    ),
    "granite that thinks": Sample(
        "Here is my thought process: Hm. Here is my response: Yes.", Said("Yes.", "Hm."), "granite", "granite"
    ),
    "glm45": Sample(
        "<think>Hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        Said("", "Hm", (OSLO, NOW)),
        "glm45",
        "think",
    ),
    "glm45, a string of digits": Sample(
        "<tool_call>weather<arg_key>city</arg_key><arg_value>2</arg_value></tool_call>",
        Said(calls=(("weather", '{"city":"2"}'),)),
        "glm45",
    ),
    "glm45, no number": Sample(
        "<tool_call>weather<arg_key>days</arg_key><arg_value>1e999</arg_value></tool_call>",
        Said(calls=(("weather", '{"days":"1e999"}'),)),
        "glm45",
    ),
    "qwen3_coder": Sample(
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        _BOTH,
        "qwen3_coder",
    ),
    "harmony": Sample(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>',
        Said("", "Hm.", (OSLO,)),
        HARMONY,
        HARMONY,
    ),
    "harmony, final": Sample(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        Said("Yes.", "Hm."),
        HARMONY,
        HARMONY,
    ),
    "harmony, without channels": Sample("Hello", Said("Hello"), HARMONY, HARMONY),
    "harmony, cut in a header": Sample("<|channel|>ana", Said(), HARMONY, HARMONY),
    "harmony, a longer name": Sample(
        f"<|channel|>commentary to={'n' * 257}<|message|>{{}}<|call|>", Said("{}"), HARMONY, HARMONY
    ),
    "forced": Sample('{"city": "Oslo", "days": 2}', Said(calls=(OSLO,)), forced="weather"),
    "forced, a list": Sample(
        '[{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}, {"name": "now", "parameters": {}}]',
        _BOTH,
        forced="",
    ),
    "forced, cut before it begins": Sample(" \n", Said(), forced="weather"),
    "forced, cut in its thoughts": Sample("<think>Hm", Said("", "Hm"), "", "think", forced="weather"),
    "forced, a list cut before its first call": Sample('[{"', Said(), forced=""),
    "forced, a list cut before its second call": Sample(
        '[{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}, {"na', Said(calls=(OSLO,)), forced=""
    ),
    "forced, no list": Sample("[Hello", Said("[Hello"), forced=""),
    "hermes, a member that nobody knows": Sample(
        '<tool_call>{"name": "now", "note": [1, "b"], "arguments": {}}</tool_call>', Said(calls=(NOW,)), "hermes"
    ),
    "hermes, a name with a space": Sample(
        '<tool_call>{"name": "no w"}</tool_call>', Said('<tool_call>{"name": "no w"}</tool_call>'), "hermes"
    ),
    "hermes, the longest name": Sample(
        f'<tool_call>{{"name": "{"n" * 256}"}}</tool_call>', Said(calls=(("n" * 256, "{}"),)), "hermes"
    ),
    "hermes, a longer name": Sample(
        f'<tool_call>{{"name": "{"n" * 257}"}}</tool_call>',
        Said(f'<tool_call>{{"name": "{"n" * 257}"}}</tool_call>'),
        "hermes",
    ),
    "hermes, no name": Sample(
        '<tool_call>{"name": " "}</tool_call>', Said('<tool_call>{"name": " "}</tool_call>'), "hermes"
    ),
    "llama, a list": Sample(
        '[{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}, {"name": "now"}]', _BOTH, "llama3_json"
    ),
    "llama, a list of no tools": Sample('[{"name": "Bob"}]', Said('[{"name": "Bob"}]'), "llama3_json"),
    "llama, close together": Sample(
        '{"name": "now"};{"name": "now"},{"name": "now"} so', Said("so", calls=(NOW, NOW, NOW)), "llama3_json"
    ),
    "llama, several behind a tag": Sample(
        '<|python_tag|>{"name": "now"};{"name": "now"} ; {"name": "now"}', Said(calls=(NOW, NOW, NOW)), "llama3_json"
    ),
    "mistral, an object": Sample('[TOOL_CALLS] {"name": "now"}', Said(calls=(NOW,)), "mistral"),
    "granite, text behind": Sample('<|tool_call|>[{"name": "now"}]So.', Said("So.", calls=(NOW,)), "granite"),
    "glm45, a tool that nobody knows": Sample(
        "<tool_call>ask<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>",
        Said(calls=(("ask", '{"n":2}'),)),
        "glm45",
    ),
}
