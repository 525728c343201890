"""Which family a model's chat template belongs to, by the markers that it writes. Pure."""

from __future__ import annotations

from dormouse_worker.front.answers.families import HARMONY

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


def tool_family(template: str) -> str:
    """Return the name of the family whose calls a template writes, "" if none is known."""
    return _first(_TOOLS, template)


def reasoning_family(template: str) -> str:
    """Return the name of the family whose reasoning a template knows, "" if none is."""
    return _first(_REASONING, template)


def _first(table: tuple[tuple[str, tuple[str, ...]], ...], template: str) -> str:
    return next((name for name, markers in table if all(marker in template for marker in markers)), "")
