"""Which family a model belongs to: what its settings say, else the markers that its chat template writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.answers.families import HARMONY
from dormouse_worker.front.answers.registry import BUILT_IN, Families
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, ResponseTemplate

# The first whose markers all stand in the template. What is more special comes first.
_TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "<|start|>")),
    ("glm45", ("<arg_key>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3_json", ('"parameters"', "<|start_header_id|>")),
)
_REASONING: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>", "analysis")),
    ("mistral", ("[THINK]",)),
    ("granite", ("Here is my thought process:",)),
    ("think", ("<think>",)),
    ("think", ("</think>",)),
)


def families_of(
    template: str, settings: EngineSettings, families: Families = BUILT_IN, own: ResponseTemplate | None = None
) -> tuple[str, str]:
    """Return the names of the families of a model's calls and of its reasoning, "" for none.

    What a checkpoint says itself comes first, then families of packages: they know their own models. Raises
    InvalidSettings where the settings name a family that nobody knows.
    """
    names = (*families.tool_names, RESPONSE_TEMPLATE) if own else families.tool_names
    tools = _chosen(
        "--tool-call-parser",
        settings.tool_call_parser,
        names,
        RESPONSE_TEMPLATE if own and own.has("calls") else detected_tools(template, families),
    )
    is_own = own is not None and own.has("reasoning") and tools in {"", RESPONSE_TEMPLATE}
    reasoning = _chosen(
        "--reasoning-parser",
        settings.reasoning_parser,
        (*families.reasoning_names, RESPONSE_TEMPLATE) if own else families.reasoning_names,
        RESPONSE_TEMPLATE if is_own else detected_reasoning(template, families),
    )
    return tools, reasoning


def detected_tools(template: str, families: Families) -> str:
    """Return the family of calls whose markers a chat template writes, "" for none."""
    own = [(name, family.template) for name, family in families.tools.items() if family.template]
    return _first([*own, *_TOOLS], template)


def detected_reasoning(template: str, families: Families) -> str:
    """Return the same for what a model thinks."""
    own = [(name, family.template) for name, family in families.reasoning.items() if family.template]
    return _first([*own, *_REASONING], template)


def _chosen(flag: str, said: str, known: Sequence[str], detected: str) -> str:
    if said not in {"auto", "none", *known[1:]}:
        limit = ", ".join(("auto", "none", *dict.fromkeys(known[1:])))
        raise InvalidSettings(f"{flag} is {said!r}; it is one of {limit}, or install the package that brings it")
    return {"auto": detected, "none": ""}.get(said, said)


def _first(table: Sequence[tuple[str, tuple[str, ...]]], template: str) -> str:
    return next((name for name, markers in table if all(marker in template for marker in markers)), "")
