"""A checkpoint's own description of its answers beside the families: what grammars and bound answers take from both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from dormouse_worker.front.answers.call_forms import CallForm
from dormouse_worker.front.answers.detection import detected_reasoning, detected_tools
from dormouse_worker.front.answers.events import Arguments, CallBegins
from dormouse_worker.front.answers.families import ReasoningFamily, ToolFamily
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.registry import Families
from dormouse_worker.front.answers.response_template import RESPONSE_TEMPLATE, Anchor, Kind, ResponseTemplate

ALL: frozenset[Kind] = frozenset({"content", "reasoning", "calls"})
_NAME, _ARGUMENTS = "weather", {"city": "Oslo"}
_SCHEMAS = {_NAME: {"type": "object", "properties": {"city": {"type": "string"}}}}


def with_own(families: Families, own: ResponseTemplate | None, chat_template: str) -> Families:
    """Return the families and the checkpoint's own, for answers that a grammar binds.

    Its calls are written as those of the family that the chat template shows, if its description reads them so.
    """
    if own is None:
        return families
    tools, reasoning = dict(families.tools), dict(families.reasoning)
    if own.has("calls"):
        tools[RESPONSE_TEMPLATE] = _tools(families.tools.get(detected_tools(chat_template, families)), own)
    if thinks := _reasoning(families.reasoning.get(detected_reasoning(chat_template, families)), own):
        reasoning[RESPONSE_TEMPLATE] = thinks
    return Families(tools, reasoning)


def _tools(shown: ToolFamily | None, own: ResponseTemplate) -> ToolFamily:
    if shown is None or not _reads_all(own, shown.strict):
        return ToolFamily(RESPONSE_TEMPLATE)
    return replace(shown, name=RESPONSE_TEMPLATE, template=())


def _reasoning(shown: ReasoningFamily | None, own: ResponseTemplate) -> ReasoningFamily | None:
    """Return what stands around thoughts, None where nobody can tell."""
    field = next((field for field in own.fields if field.kind == "reasoning"), None)
    if field is None:
        return None
    opening, closing = _only(field.opening), _only(field.closing)
    if opening and closing:
        return ReasoningFamily(RESPONSE_TEMPLATE, opening.strip(), closing.strip())
    return replace(shown, name=RESPONSE_TEMPLATE, template=()) if shown else None


def _only(anchor: Anchor | None) -> str:
    return anchor.literals[0] if anchor and len(anchor.literals) == 1 else ""


def _reads_all(own: ResponseTemplate, forms: Sequence[CallForm]) -> bool:
    """Return whether a description reads calls in these forms as the calls that they are."""
    return bool(forms) and all(_reads(own, _written(form)) for form in forms)


def _reads(own: ResponseTemplate, text: str) -> bool:
    parser = AnswerParser(Grammar(response=own, told=ALL), _SCHEMAS)
    called = CallBegins(0, _NAME), Arguments(0, json.dumps(_ARGUMENTS, separators=(",", ":")))
    return [*parser.feed(text), *parser.finish()] == [*called]


def _written(form: CallForm) -> str:
    name = json.dumps(_NAME) if form.quotes_name else _NAME
    said = json.dumps(_ARGUMENTS)
    if pairs := form.pairs:
        values = [(key, value if pairs.bare_strings else json.dumps(value)) for key, value in _ARGUMENTS.items()]
        said = pairs.separator.join(f"{pairs.before}{key}{pairs.between}{value}{pairs.after}" for key, value in values)
    return f"{form.trigger}{form.opening}{form.before}{name}{form.between}{said}{form.after}{form.closing}"
