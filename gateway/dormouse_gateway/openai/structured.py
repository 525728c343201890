"""What form an answer must have: OpenAI's response_format and vLLM's structured_outputs, to the contract's. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.schema_kit import (
    BOOLEAN,
    FREE,
    MAX_NAME_CHARS,
    Json,
    array,
    fields,
    kind,
    one_of,
    or_null,
    text,
)

_MAX_OPTIONS = 1024  # of a choice
_CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")

_NAMED_SCHEMA: Mapping[str, Json] = {
    "name": text(1, MAX_NAME_CHARS),
    "description": or_null(text()),
    "schema": FREE | {"description": "A JSON Schema."},
    "strict": or_null(BOOLEAN) | {"description": "Without effect: a schema is always kept."},
}
RESPONSE_FORMAT = one_of(
    kind("text", {}),
    kind("json_object", {}),
    kind("json_schema", {"json_schema": fields(_NAMED_SCHEMA, "name", "schema")}, "json_schema"),
    description="text, json_object, or json_schema with a JSON Schema that the answer is forced to fit.",
)
TEXT_FORMAT = one_of(  # as /v1/responses has it
    kind("text", {}),
    kind("json_object", {}),
    kind("json_schema", _NAMED_SCHEMA, "name", "schema"),
)
STRUCTURED_OUTPUTS = fields(
    {
        "json": or_null(one_of(FREE, text(1))),
        "json_object": or_null(BOOLEAN),
        "regex": or_null(text(1)),
        "choice": or_null(array(text(1), _MAX_OPTIONS, least=1)),
        "grammar": or_null(text(1)),
        "structural_tag": or_null(one_of(FREE, text(1))),
        "disable_any_whitespace": BOOLEAN,
        "disable_additional_properties": BOOLEAN,
    }
) | {"description": f"One of {', '.join(_CONSTRAINTS)}: the form that the answer is forced into."}


def constrain(params: pb.SamplingParams, body: Mapping[str, Any]) -> None:
    """Write the form that a chat's or completion's body asks for. Raises ApiError where it asks for two."""
    wanted, form = body.get("structured_outputs"), body.get("response_format", {"type": "text"})
    if wanted is not None and form["type"] != "text":
        raise refuse("structured_outputs", f"set beside response_format {form['type']}", "one of the two")
    if wanted is not None:
        params.structured_outputs.CopyFrom(_structured(wanted))
    else:
        constrain_to(params, form | form.get("json_schema", {}))


def constrain_to(params: pb.SamplingParams, form: Mapping[str, Any]) -> None:
    """Write a format: text, any JSON object, or what fits the schema."""
    if form["type"] == "json_object":
        params.structured_outputs.json_object = True
    elif form["type"] == "json_schema":
        params.structured_outputs.json_schema = _written(form["schema"])


def _structured(wanted: Mapping[str, Any]) -> pb.StructuredOutputs:
    given = [name for name in _CONSTRAINTS if wanted.get(name) not in (None, False)]
    if len(given) != 1:
        raise refuse(
            "structured_outputs", f"{', '.join(given) or 'none'} of its kinds", f"one of {', '.join(_CONSTRAINTS)}"
        )
    (name,) = given
    value = wanted[name]
    made = pb.StructuredOutputs()
    match name:
        case "json":
            made.json_schema = _written(value)
        case "choice":
            made.choice.options.extend(value)
        case "structural_tag":
            made.structural_tag = _written(value)
        case _:
            setattr(made, name, value)
    for switch in ("disable_any_whitespace", "disable_additional_properties"):
        setattr(made, switch, bool(wanted.get(switch)))
    return made


def _written(value: Any) -> str:
    """Return JSON as text; what is text already stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
