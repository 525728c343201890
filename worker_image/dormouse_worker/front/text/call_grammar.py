"""Grammars of calls: arguments that fit a tool's schema, alone, in a list, or as a family writes calls. Pure.

What binds calls is a mapping, for it goes to another process: `form` (arguments, list, tags, channels), `tools` as
pairs of name and schema, `is_single` where no text comes between. For tags also `forms` (`CallForm` as mappings),
`noise` and `thinking` (markers that say nothing, and around thoughts) and `special`, the ids of those markers that are
special tokens; for channels `special`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dormouse_api.limits import MAX_STRUCTURED_OUTPUTS_BYTES
from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.front.text.argument_grammar import OPTIONS, Tools, arguments, in_pairs, written

__all__ = ["MAX_FORCED_CALLS", "OPTIONS", "calls_grammar", "tagged_calls", "written"]

MAX_FORCED_CALLS = 32  # where nothing else may come: a weak model would never end
_NAME = re.compile(r"[\w.:/-]+")
_SPACE = "SPACE: /[ \\t\\r\\n]{1,8}/"
_TEXT = ("ANY: /(?s:.*)/", "TEXT: /(?s:.+)/")

Calls = Mapping[str, Any]


def calls_grammar(calls: Calls) -> str:
    """Return the grammar in Lark's syntax. Raises GrammarRefused naming the tool that it cannot have."""
    return "\n".join(_within_bounds(_RULES[calls["form"]](calls)))


def tagged_calls(calls: Calls) -> tuple[str, list[str]]:
    """Return what a section of calls is, with its marker, and the rules of that. Raises as `calls_grammar` does."""
    made = [(f"section_{n}", form) for n, form in enumerate(calls["forms"]) if form["trigger"]]
    rules = [f"{name}: {written(form['trigger'], calls['special'])} {name}_calls" for name, form in made]
    bodies = [rule for name, form in made for rule in _section(name, form, calls)]
    noise = " ".join(f"({written(text, calls['special'])})*" for text in calls["noise"])
    return f"{noise} ({' | '.join(name for name, _ in made)}) {noise}", _within_bounds([*rules, *bodies])


def _one(calls: Calls) -> Iterator[str]:
    yield "start: arguments_0"
    yield from arguments(calls["tools"], "arguments")


def _list(calls: Calls) -> Iterator[str]:
    more = "" if calls["is_single"] else f' (", " call){{0,{MAX_FORCED_CALLS - 1}}}'
    yield f'start: "[" call{more} "]"'
    around = {"before": '{"name": ', "between": ', "parameters": ', "after": "}", "label": ""}
    yield from _calls("call", {**around, "quotes_name": True, "pairs": None}, calls["tools"], {})


def _free(calls: Calls) -> Iterator[str]:
    """Yield the rules of text in which nothing but calls follow what begins them.

    A marker that is a special token is none of a text. One that is text ends a text where it ends: `lazy`. Where calls
    begin the text without a marker, another text (HEAD) begins with nothing that a call could begin with.
    """
    special, forms = calls["special"], list(enumerate(calls["forms"]))
    by_text = [(n, form) for n, form in forms if form["trigger"] and form["trigger"] not in special]
    called = [f"triggered_{n} section_{n}_calls" for n, _ in by_text]
    is_bare = not all(form["trigger"] for _, form in forms)
    others = _by_token(calls) if is_bare else [*_by_token(calls), *_noise(calls)]
    each = [*called, *(f"TEXT? {other}" for other in others)]
    more = f"(({') | ('.join(each)}))* TEXT?" if each else "TEXT?"
    if is_bare:
        yield from _beginning(calls, [n for n, _ in by_text], more)
    else:
        yield f"start: {more}"
    yield from _TEXT
    yield from (f"triggered_{n}[lazy]: ANY {written(form['trigger'], special)}" for n, form in by_text)
    for n, form in forms:
        yield from _section(f"section_{n}", form, calls)


def _beginning(calls: Calls, by_text: Sequence[int], more: str) -> Iterator[str]:
    """Yield the rules of an answer that may begin with calls, behind markers that say nothing."""
    special, noise, forms = calls["special"], calls["noise"], calls["forms"]
    led = " ".join(f"({written(it, special)} SPACE?)?" for it in noise)
    silent = "".join(f"(SPACE? {it})? " for it in _noise(calls))
    ended = " ".join(f"({written(it, special)})?" for it in noise)
    called = " | ".join(f"section_{n}_calls" for n, form in enumerate(forms) if not form["trigger"])
    firsts = [f"{silent}head_{n} section_{n}_calls {more}" for n in by_text]
    tokens = [f"{silent}HEAD ({' | '.join(by_token)}) {more}"] if (by_token := _by_token(calls)) else []
    yield f"start: {' | '.join([f'SPACE? {led} ({called}) SPACE? {ended}', *firsts, *tokens, f'{silent}HEAD'])}"
    yield _SPACE
    begins = [re.escape(text).replace("/", r"\/") for text in ["{", "[", *(it for it in noise if it not in special)]]
    yield f"HEAD: /(?s:.*)/ & ~/(?s:[ \\t\\r\\n]*({'|'.join(begins)}).*)/"
    yield from (f"head_{n}[lazy]: HEAD {written(forms[n]['trigger'], special)}" for n in by_text)


def _by_token(calls: Calls) -> list[str]:
    """Return the sections that begin with a token."""
    special, forms = calls["special"], enumerate(calls["forms"])
    return [f"{written(form['trigger'], special)} section_{n}_calls" for n, form in forms if form["trigger"] in special]


def _noise(calls: Calls) -> list[str]:
    """Return the markers that text cannot have in it, for they are tokens, and that may come anywhere."""
    return [
        written(text, calls["special"]) for text in [*calls["noise"], *calls["thinking"]] if text in calls["special"]
    ]


def _section(name: str, form: Mapping[str, Any], calls: Calls) -> Iterator[str]:
    """Yield the rules of what follows a trigger: a call, or several."""
    opening, closing = (json.dumps(form[it]) if form[it] else "" for it in ("opening", "closing"))
    lead = '" "? ' if opening and form["trigger"] else ""
    is_more = form["separator"] is not None and not calls["is_single"]
    more = f"({json.dumps(form['separator'])} {name}_call)*" if is_more else ""
    yield f"{name}_calls: {lead}{opening} {name}_call {more} {closing}"
    yield from _calls(f"{name}_call", form, calls["tools"], calls["special"])


def _calls(name: str, form: Mapping[str, Any], tools: Tools, special: Mapping[str, int]) -> Iterator[str]:
    """Yield the rule of any call, and those of each tool."""
    yield f"{name}: {' | '.join(f'{name}_{index}' for index in range(len(tools)))}"
    for index, (tool, _) in enumerate(tools):
        begin = _begun(f"{form['before']}{_named(tool, form)}", name, form, special)
        yield f"{name}_{index}: {begin} {name}_arguments_{index} {written(form['after'], special)}"
    if form["label"]:
        yield f"{name}_id: /[a-zA-Z0-9]{{9}}/"
    make = arguments if form["pairs"] is None else in_pairs(form["pairs"], special)
    yield from make(tools, f"{name}_arguments")


def _begun(begin: str, name: str, form: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Return what stands before a call's arguments, with the id that may come behind its name."""
    if not form["label"]:
        return written(f"{begin}{form['between']}", special)
    return (
        f"{written(begin, special)} ({written(form['label'], special)} {name}_id)? {written(form['between'], special)}"
    )


def _named(tool: str, form: Mapping[str, Any]) -> str:
    if form["quotes_name"]:
        return json.dumps(tool)
    if not _NAME.fullmatch(tool):
        raise GrammarRefused(f"the name {tool[:64]!r} has characters that the model's calls cannot have")
    return tool


def _channels(calls: Calls) -> Iterator[str]:
    """Yield the rules of messages in channels, the last of which says something or calls."""
    token = {name: f"<[{token_id}]>" for name, token_id in calls["special"].items()}
    channel, message, constrain = token["<|channel|>"], token["<|message|>"], token["<|constrain|>"]
    yield f'start: (said {token["<|end|>"]} {token["<|start|>"]} "assistant")* (said | call)'
    yield f'said: {channel} ("analysis" | "commentary" | "final") {message} TEXT?'
    yield "TEXT: /(?s:.+)/"
    yield f"call: {' | '.join(f'call_{index}' for index in range(len(calls['tools'])))}"
    for index, (tool, _) in enumerate(calls["tools"]):
        to = json.dumps(f" to=functions.{_named(tool, {'quotes_name': False})}")
        json_said = f'(" "? {constrain} "json" | " json")?'
        either = f'({channel} "commentary" {to} | {to} {channel} "commentary")'
        yield f"call_{index}: {either} {json_said} {message} arguments_{index}"
    yield from arguments(calls["tools"], "arguments")


_RULES = {"arguments": _one, "list": _list, "tags": _free, "channels": _channels}


def _within_bounds(rules: Iterator[str] | Sequence[str]) -> list[str]:
    made: list[str] = []
    size = 0
    for rule in rules:
        made.append(rule)
        size += len(rule)
        if size > MAX_STRUCTURED_OUTPUTS_BYTES:
            raise GrammarRefused(f"the tools make a grammar of more than {MAX_STRUCTURED_OUTPUTS_BYTES} bytes")
    return made
