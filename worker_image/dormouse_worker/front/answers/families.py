"""How families of models write reasoning and calls, as data. Names are those of vLLM's parsers."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

from dormouse_worker.front.answers import call_forms
from dormouse_worker.front.answers.call_forms import CallForm
from dormouse_worker.front.answers.calls import JsonCalls, NamedCalls, PairCalls


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """Which markers stand around what a model thinks."""

    name: str
    opening: str
    closing: str
    template: tuple[str, ...] = ()  # what stands in chat templates of such models; of a package's family


@dataclass(frozen=True, slots=True)
class ToolFamily:
    """How calls are written: sections within the text, or the whole text (`bare`)."""

    name: str
    sections: tuple[JsonCalls | NamedCalls | PairCalls, ...] = ()
    noise: tuple[str, ...] = ()  # markers that say nothing
    bare: Literal["json", "python"] | None = None  # the text begins with calls of known tools, without a marker
    strict: tuple[CallForm, ...] = ()  # how a grammar writes calls: all ways in which they are read; empty: none does
    template: tuple[str, ...] = ()  # what stands in chat templates of such models; of a package's family

    @property
    def markers(self) -> frozenset[str]:
        """Return what may stand in a text beside what it says."""
        written = [value for section in self.sections for value in astuple(section) if isinstance(value, str)]
        return frozenset({*written, *self.noise} - {""})

    @property
    def strict_texts(self) -> frozenset[str]:
        """Return what a grammar writes around names and arguments."""
        return frozenset(text for form in self.strict for text in astuple(form) if isinstance(text, str) and text)

    @property
    def may_replace_a_form(self) -> bool:
        """Return whether an answer that is bound to a form can be told from calls that come instead of it."""
        return bool(self.strict) and all(form.trigger for form in self.strict)


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
            strict=(call_forms.HERMES,),
        ),
        ToolFamily(
            "llama3_json", (JsonCalls("<|python_tag|>", separator=";"),), ("<|eom_id|>",), "json", call_forms.LLAMA3
        ),
        ToolFamily(
            "mistral",
            (NamedCalls("[TOOL_CALLS]", "[ARGS]", noise="[CALL_ID]", or_json=True),),
            strict=call_forms.MISTRAL,
        ),
        ToolFamily(
            "pythonic", noise=("<|python_start|>", "<|python_end|>"), bare="python", strict=(call_forms.PYTHONIC,)
        ),
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
            strict=(call_forms.DEEPSEEK_V3,),
        ),
        ToolFamily(
            "deepseek_v31",
            (NamedCalls("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", closing="<｜tool▁call▁end｜>"),),
            ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            strict=(call_forms.DEEPSEEK_V31,),
        ),
        ToolFamily(
            "granite", (JsonCalls("<|tool_call|>"), JsonCalls("<tool_call>", "</tool_call>")), strict=call_forms.GRANITE
        ),
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
            strict=(call_forms.GLM45,),
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
            strict=(call_forms.QWEN3_CODER,),
        ),
    )
}
HARMONY = "openai"  # reasoning and calls in channels: no markers within a text, but messages
