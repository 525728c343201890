"""How a grammar writes the calls of a family, as data: each form is one that the family's parser reads back."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pairs:
    """Arguments one by one: `before KEY between VALUE after`, with a separator between them."""

    before: str
    between: str
    after: str
    separator: str = ""
    bare_strings: bool = False  # a string's value stands as it is, up to `after`


@dataclass(frozen=True, slots=True)
class CallForm:
    """What stands around a call's name and arguments: `trigger before NAME [label ID] between ARGUMENTS after`."""

    trigger: str  # begins calls and nothing else; "" = calls begin the text, without a marker
    before: str
    between: str
    after: str
    quotes_name: bool = True
    separator: str | None = None  # several calls may follow one trigger, and stand so between `opening` and `closing`
    opening: str = ""
    closing: str = ""
    pairs: Pairs | None = None  # None: arguments are one JSON object
    label: str = ""  # behind a name, before an id of nine letters and digits; both may be left out


HERMES = CallForm("<tool_call>", '\n{"name": ', ', "arguments": ', "}\n</tool_call>")
LLAMA3 = tuple(
    CallForm(trigger, '{"name": ', ', "parameters": ', "}", separator="; ") for trigger in ("", "<|python_tag|>")
)
_LISTED = CallForm("", '{"name": ', ', "arguments": ', "}", separator=", ", opening="[", closing="]")
MISTRAL = (
    CallForm("[TOOL_CALLS]", "", "[ARGS]", "", quotes_name=False, label="[CALL_ID]"),
    replace(_LISTED, trigger="[TOOL_CALLS]"),
)
GRANITE = (replace(_LISTED, trigger="<|tool_call|>"), HERMES)
PYTHONIC = CallForm(
    "", "", "(", ")", quotes_name=False, separator=", ", opening="[", closing="]", pairs=Pairs("", "=", "", ", ")
)
DEEPSEEK_V3 = CallForm(
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>",
    "\n```json\n",
    "\n```<｜tool▁call▁end｜>",
    quotes_name=False,
)
DEEPSEEK_V31 = CallForm("<｜tool▁call▁begin｜>", "", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", quotes_name=False)
GLM45 = CallForm(
    "<tool_call>",
    "",
    "\n",
    "</tool_call>",
    quotes_name=False,
    pairs=Pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", bare_strings=True),
)
QWEN3_CODER = CallForm(
    "<tool_call>",
    "\n<function=",
    ">\n",
    "</function>\n</tool_call>",
    quotes_name=False,
    pairs=Pairs("<parameter=", ">\n", "</parameter>\n", bare_strings=True),
)
