"""A grammar among others: thoughts may come before the text that it binds, or calls instead of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dormouse_worker.front.text.call_grammar import MAX_FORCED_CALLS, tagged_calls, written

_SPACE = "SPACE: /[ \\t\\r\\n]{1,8}/"


def composed(text: str, thoughts: Mapping[str, Any] | None, calls: Mapping[str, Any] | None) -> str:
    """Return the grammar of what there is, in llguidance's words; the text's own where it is alone.

    Raises GrammarRefused naming a tool that it cannot have.
    """
    if thoughts is None and calls is None:
        return text
    parts = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    [body] = parts  # llguidance makes one of whatever there is
    lines = [f"start: {_may_come(thoughts)} {_said(calls)}", _SPACE]
    if thoughts is not None:
        lines += _thoughts(thoughts)
    if calls is not None:
        section, rules = tagged_calls(calls)
        lines += [f"made: {section} SPACE?", *rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(lines)}, {**body, "name": "body"}]})


def _may_come(thoughts: Mapping[str, Any] | None) -> str:
    """Return how often thoughts come: once where they have begun."""
    return "" if thoughts is None else "thoughts" if thoughts["has_begun"] else "thoughts?"


def _said(calls: Mapping[str, Any] | None) -> str:
    if calls is None:
        return "@body"
    return "(@body | made)" if calls["is_single"] else f"(@body | made{{1,{MAX_FORCED_CALLS}}})"


def _thoughts(thoughts: Mapping[str, Any]) -> list[str]:
    opening = "" if thoughts["has_begun"] else f"{_marker(thoughts, 'opening')} "
    whole = f"thoughts: {opening}thought SPACE?"
    if thoughts["closing_id"] is None:
        return [whole, f"thought[suffix={json.dumps(thoughts['closing'])}]: /(?s:.*)/"]
    return [whole, f"thought: TEXT? {_marker(thoughts, 'closing')}", "TEXT: /(?s:.+)/"]


def _marker(thoughts: Mapping[str, Any], which: str) -> str:
    token_id = thoughts[f"{which}_id"]
    return written(thoughts[which], {} if token_id is None else {thoughts[which]: token_id})
