"""/v1/decisions, as OpenAI's SDK sends it: from a checked body to one call of a worker, and from its answer to ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.responses.mapping import turns_of
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.turns import with_one_beginning
from dormouse_gateway.openai.wish import check_size

Body = Mapping[str, Any]
_OUTPUT = "_output"


async def decisions(body: Body, texts: WorkerTexts) -> Json:
    """Return the answers of a body that fits DECISIONS_REQUEST, in the order of its questions. Raises ApiError."""
    told = await texts.decide(to_decide(body))
    asked = zip(body["questions"], told.answers, strict=True)
    return {
        "answers": [_answer(question, answer) for question, answer in asked],
        "model": body["model"],
        "usage": _usage(told.usage),
    }


def to_decide(body: Body) -> pb.DecideRequest:
    """Return the call for a body that fits DECISIONS_REQUEST. Pure. Raises ApiError."""
    request = begun(body)
    request.min_label_mass = body.get("min_label_mass", 0)
    if isinstance(body["input"], str):
        fill_text(request, body["input"], body)
    else:
        _check_calls(body["input"])
        request.chat.messages.extend(with_one_beginning(turns_of(map(_plain, body["input"]))))
        request.chat.template_args.update(body.get("chat_template_kwargs", {}))
    request.questions.extend(_question(place, one) for place, one in enumerate(body["questions"]))
    check_size(request)
    return request


def begun(body: Body) -> pb.DecideRequest:
    """Return the call without state and questions."""
    key = body.get("prompt_cache_key", "")
    return pb.DecideRequest(model=body["model"], priority=int(body.get("priority", 0)), prompt_cache_key=key)


def fill_text(request: pb.DecideRequest, state: str, body: Body) -> None:
    """Write a state that is text: a turn of a chat, where the template is told something."""
    if arguments := body.get("chat_template_kwargs"):
        request.chat.messages.add(role="user", content=state)
        request.chat.template_args.update(arguments)
    else:
        request.text = state


def as_json(value: Any) -> str:
    """Return a value as a model reads it."""
    return json.dumps(value, ensure_ascii=False)


def _question(place: int, said: Body) -> pb.DecideQuestion:
    question = pb.DecideQuestion(instructions=_text(said["instructions"]))
    match said["type"]:
        case "predicate":
            question.predicate.SetInParent()
        case "choice":
            values = [one["value"] for one in said["choices"]]
            if len({(type(value), value) for value in values}) < len(values):
                raise refuse(f"questions[{place}].choices", "made of values that are there twice", "each value once")
            question.choice.options.extend(_option(_shown(one["value"]), one) for one in said["choices"])
        case _:
            question.score.levels.extend(_option(one["label"], one) for one in said["levels"])
    return question


def _option(name: str, said: Body) -> pb.DecideOption:
    return pb.DecideOption(name=name, description=said.get("description", ""))


def _shown(value: str | bool) -> str:  # noqa: FBT001  # a value of the API
    return value if isinstance(value, str) else as_json(value)


def _answer(said: Body, answer: pb.DecideAnswer) -> Json:
    told: Json = {"type": said["type"], "name": said.get("name")}
    likely = list(answer.probabilities)
    if answer.refusal:
        return told | {"type": "refusal", "reason": answer.refusal}
    told["label_mass"] = answer.label_mass
    if said["type"] == "predicate":
        return told | {"probability": likely[0]}
    best = likely.index(max(likely))
    told["confidence"] = confidence(answer)
    if said["type"] == "choice":
        values = [one["value"] for one in said["choices"]]
        pairs = zip(values, likely, strict=True)
        return told | {"choice": values[best], "probabilities": [{"value": v, "probability": p} for v, p in pairs]}
    levels = enumerate(zip(said["levels"], likely, strict=True))
    listed = [{"value": place, "label": level["label"], "probability": p} for place, (level, p) in levels]
    return told | {"score": expected(likely), "probabilities": listed}


def confidence(answer: pb.DecideAnswer) -> float:
    """Return how likely the model says the best label at all, as vLLM reckons it."""
    return max(answer.probabilities) * answer.label_mass


def expected(likely: Sequence[float]) -> float:
    """Return the mean level, counted from 0."""
    return sum(place * probability for place, probability in enumerate(likely))


def _usage(usage: pb.Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens,
    }


def _check_calls(items: Iterable[Body]) -> None:
    """Raise where an output belongs to no call before it."""
    called: set[str] = set()
    for place, item in enumerate(items):
        kind = item.get("type", "message")
        if kind.endswith(_OUTPUT) and item["call_id"] not in called:
            raise refuse(f"input[{place}].call_id", as_json(item["call_id"]), "the call_id of a call before it")
        if "call_id" in item:
            called.add(item["call_id"])


def _plain(item: Body) -> Body:
    """Return an item in the form in which a conversation has it: text alone, and functions for all tools."""
    kind = item.get("type", "message")
    if kind == "custom_tool_call":
        return {**item, "type": "function_call", "arguments": as_json({"input": item["input"]})}
    if kind.endswith(_OUTPUT):
        return {**item, "type": "function_call_output", "output": _text(item["output"])}
    return item if kind == "function_call" else {**item, "content": _text(item["content"])}


def _text(said: Any) -> str:
    """Return text, or its parts joined by line ends."""
    return said if isinstance(said, str) else "\n".join(map(_part, said))


def _part(part: Body) -> str:
    return as_json(part["data"]) if part["type"] == "input_json" else str(part.get("text", part.get("refusal")))
