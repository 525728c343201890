"""What binds a call's answers: the form that its caller asks for, or the tools that the answer has to call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.front.answers.harmony import END_MARKERS
from dormouse_worker.front.answers.harmony import MARKERS as HARMONY_MARKERS
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.requests.answer_parts import Parsing, is_json
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.text.grammars import Thoughts


async def bind(model: Model, request: pb.GenerateRequest, parsing: Parsing | None, caller: str) -> Grammar | None:
    """Return the grammar of the answers, None if any text will do. Raises CallError INVALID_ARGUMENT."""
    params = request.sampling_params
    thoughts = _thoughts(model, parsing) if parsing else None
    if parsing and parsing.is_forced:
        if params.HasField("structured_outputs"):
            refuse("sampling_params.structured_outputs", "set where a call is forced", "one of the two")
        return await model.grammars.compile_calls(_forced(parsing), caller, thoughts)
    if params.HasField("structured_outputs"):
        calls = _tagged(model, parsing) if parsing and is_json(params.structured_outputs) else None
        return await model.grammars.compile(params.structured_outputs, caller, thoughts, calls)
    if parsing and parsing.strict:
        return await model.grammars.compile_calls(_strict(model, parsing), caller)
    return None


def _forced(parsing: Parsing) -> dict[str, Any]:
    name, schemas = parsing.grammar.forced, parsing.schemas
    if name:
        return {"form": "arguments", "tools": [(name, schemas[name])]}
    return {"form": "list", "tools": list(schemas.items()), "is_single": parsing.grammar.is_single}


def _strict(model: Model, parsing: Parsing) -> Mapping[str, Any]:
    """Return free text and calls in the way of the model's family. Raises CallError if no grammar is known for that."""
    grammar = parsing.grammar
    if grammar.is_harmony:
        tools, special = list(parsing.schemas.items()), model.codec.special_token_ids(HARMONY_MARKERS)
        if missing := sorted(HARMONY_MARKERS - special.keys() - END_MARKERS):
            refuse("chat.tools", f"strict for {parsing.strict[:64]!r}", f"a model whose tokens {missing[0]} is one of")
        return {"form": "channels", "tools": tools, "special": special}
    calls = _tagged(model, parsing)
    if calls is None:
        family = grammar.tools.name if grammar.tools else ""
        limit = f"only where a call is forced: no grammar is known for calls of the family {family}"
        refuse("chat.tools", f"strict for {parsing.strict[:64]!r}", limit)
    return calls


def _tagged(model: Model, parsing: Parsing) -> Mapping[str, Any] | None:
    """Return calls as the model's family writes them, None if no grammar is known for that."""
    family, reasoning = parsing.grammar.tools, parsing.grammar.reasoning
    if family is None or not family.strict or (family.bare and reasoning):
        return None
    thinking = {reasoning.opening, reasoning.closing} if reasoning else set()
    special = model.codec.special_token_ids({*thinking, *family.markers, *family.strict_texts})
    return {
        "form": "tags",
        "tools": list(parsing.schemas.items()),
        "is_single": parsing.grammar.is_single,
        "forms": [asdict(form) for form in family.strict],
        "noise": [*family.noise],
        "thinking": sorted(thinking),
        "special": special,
    }


def _thoughts(model: Model, parsing: Parsing) -> Thoughts | None:
    """Return what may be thought before the answer that is bound, None if nothing is told apart there."""
    family = parsing.grammar.reasoning
    if family is None:
        return None
    ids = model.codec.special_token_ids([family.opening, family.closing])
    return Thoughts(
        family.opening,
        family.closing,
        parsing.grammar.begins_in_reasoning,
        ids.get(family.opening),
        ids.get(family.closing),
    )
