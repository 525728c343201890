"""How families of models write reasoning and calls, as data. Names are those of vLLM's parsers."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

from dormouse_worker.front.answers.calls import JsonCalls, NamedCalls, PairCalls


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """Which markers stand around what a model thinks."""

    name: str
    opening: str
    closing: str


@dataclass(frozen=True, slots=True)
class CallForm:
    """What stands around a call's name and arguments, both JSON: `trigger before NAME between ARGUMENTS after`."""

    trigger: str  # begins a call and nothing else
    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How calls are written: sections within the text, or the whole text (`bare`)."""

    name: str
    sections: tuple[JsonCalls | NamedCalls | PairCalls, ...] = ()
    noise: tuple[str, ...] = ()  # markers that say nothing
    bare: Literal["json", "python"] | None = None  # the text begins with calls of known tools, without a marker
    strict: CallForm | None = None  # how a grammar writes a call; None: none does

    @property
    def markers(self) -> frozenset[str]:
        """Return what may stand in a text beside what it says."""
        written = [value for section in self.sections for value in astuple(section) if isinstance(value, str)]
        return frozenset({*written, *self.noise} - {""})


THINK = ReasoningFamily("think", "<think>", "</think>")
GRANITE_THINKS = ReasoningFamily("granite", "Here is my thought process:", "Here is my response:")
MISTRAL_THINKS = ReasoningFamily("mistral", "[THINK]", "[/THINK]")
REASONING_FAMILIES = {family.name: family for family in (THINK, GRANITE_THINKS, MISTRAL_THINKS)}

TOOL_FAMILIES = {
    family.name: family
    for family in (
        ToolFamily(
            "hermes",
            (JsonCalls("<tool_call>", "</tool_call>"),),
            strict=CallForm("<tool_call>", '\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
        ),
        ToolFamily("llama3_json", (JsonCalls("<|python_tag|>", separator=";"),), ("<|eom_id|>",), bare="json"),
        ToolFamily("mistral", (NamedCalls("[TOOL_CALLS]", "[ARGS]", noise="[CALL_ID]", or_json=True),)),
        ToolFamily("pythonic", noise=("<|python_start|>", "<|python_end|>"), bare="python"),
        ToolFamily(
            "deepseek_v3",
            (
                NamedCalls(
                    "<｜tool▁call▁begin｜>",
                    "```json",
                    closing="```<｜tool▁call▁end｜>",
                    prefix="function<｜tool▁sep｜>",
                ),
            ),
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        ToolFamily(
            "deepseek_v31",
            (NamedCalls("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", closing="<｜tool▁call▁end｜>"),),
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        ),
        ToolFamily("granite", (JsonCalls("<|tool_call|>"), JsonCalls("<tool_call>", "</tool_call>"))),
        ToolFamily(
            "glm45",
            (
                PairCalls(
                    "<tool_call>",
                    "</tool_call>",
                    key_opening="<arg_key>",
                    key_closing="</arg_key>",
                    value_opening="<arg_value>",
                    value_closing="</arg_value>",
                ),
            ),
        ),
        ToolFamily(
            "qwen3_coder",
            (
                PairCalls(
                    "<tool_call>",
                    "</tool_call>",
                    name_opening="<function=",
                    name_closing=">",
                    key_opening="<parameter=",
                    key_closing=">",
                    value_closing="</parameter>",
                ),
            ),
        ),
    )
}
HARMONY = "openai"  # reasoning and calls in channels: no markers within a text, but messages
REASONING_NAMES = ("", *REASONING_FAMILIES, HARMONY)
TOOL_NAMES = ("", *TOOL_FAMILIES, HARMONY)
