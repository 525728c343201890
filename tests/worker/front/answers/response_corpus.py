# ruff: noqa: E501  # answers stand as models write them
"""Templates that checkpoints carry, and answers with what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dormouse_worker.front.answers.own_family import ALL
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.response_template import read_response_template
from tests.worker.front.answers.corpus import NOW, OSLO, TOOLS, Said

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
