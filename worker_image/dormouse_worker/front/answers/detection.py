"""Which family a model belongs to: what its settings say, else the markers that its chat template writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.answers.families import HARMONY
from dormouse_worker.front.answers.registry import BUILT_IN, Families

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


def families_of(template: str, settings: EngineSettings, families: Families = BUILT_IN) -> tuple[str, str]:
    """Return the names of the families of a model's calls and of its reasoning, "" for none.

    Families of packages come before ours: they know their own models.
    """
    own_tools = [(name, family.template) for name, family in families.tools.items() if family.template]
    own_reasoning = [(name, family.template) for name, family in families.reasoning.items() if family.template]
    return (
        _chosen(settings.tool_call_parser, _first([*own_tools, *_TOOLS], template)),
        _chosen(settings.reasoning_parser, _first([*own_reasoning, *_REASONING], template)),
    )


def _chosen(said: str, detected: str) -> str:
    return {"auto": detected, "none": ""}.get(said, said)


def _first(table: Sequence[tuple[str, tuple[str, ...]]], template: str) -> str:
    return next((name for name, markers in table if all(marker in template for marker in markers)), "")
