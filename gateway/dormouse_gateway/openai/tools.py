"""Which tools an answer may call, or has to, and how many: from a checked body to what the worker tells apart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dormouse_api.limits import MAX_TOOLS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.schema_kit import MAX_NAME_CHARS, array, fields, kind, one_of, text

_NAMED = {"function": fields({"name": text(1, MAX_NAME_CHARS)}, "name")}
_FUNCTION = kind("function", _NAMED, "function")
_ALLOWED = fields(
    {"mode": {"enum": ["auto", "required"]}, "tools": array(_FUNCTION, MAX_TOOLS, least=1)}, "mode", "tools"
)
TOOL_CHOICE = one_of(
    {"enum": ["auto", "none", "required"]},
    _FUNCTION,
    kind("allowed_tools", {"allowed_tools": _ALLOWED}, "allowed_tools"),
    description="none: the template gets no tools. required, or a named function: the answer is bound to calls whose "
    "arguments fit the schemas.",
)


def offered(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the functions that the model is shown. Raises ApiError for a choice of what is not there."""
    functions = [tool["function"] for tool in body.get("tools", ())]
    choice = body.get("tool_choice", "auto")
    if choice == "none":
        return []
    if choice != "auto" and not functions:
        raise refuse("tool_choice", "set without tools", "at least one tool to call")
    names = _chosen(choice)
    for name in names - {function["name"] for function in functions}:
        raise refuse("tool_choice", f"the function {name[:64]!r}", "one of tools")
    is_subset = not isinstance(choice, str) and choice["type"] == "allowed_tools"
    return [function for function in functions if not is_subset or function["name"] in names]


def parsing(body: Mapping[str, Any]) -> pb.AnswerParsing:
    """Return what is told apart in a chat's answer: what it thinks always, calls where there are tools."""
    asked = pb.AnswerParsing(reasoning=True, tool_calls=bool(offered(body)))
    if not asked.tool_calls:
        return asked
    choice = body.get("tool_choice", "auto")
    if _mode(choice) == "required":
        asked.any_function = True
    elif _mode(choice) == "function":
        asked.function = choice["function"]["name"]
    asked.single_call = body.get("parallel_tool_calls") is False
    return asked


def _chosen(choice: Any) -> set[str]:
    """Return the functions that a choice names."""
    if isinstance(choice, str):
        return set()
    if choice["type"] == "function":
        return {choice["function"]["name"]}
    return {tool["function"]["name"] for tool in choice["allowed_tools"]["tools"]}


def _mode(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    return str(choice["allowed_tools"]["mode"] if choice["type"] == "allowed_tools" else "function")
