"""/v1/systemone, as vLLM has it: questions by ids of the caller's, answers by these. Ids never reach a worker."""

from __future__ import annotations

import time

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.checking import shown
from dormouse_gateway.openai.decisions.asking import Body, as_json, begun, confidence, expected, fill_text
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import check_size

_SIDES = ("true", "false")


async def systemone(body: Body, texts: WorkerTexts) -> Json:
    """Return the answers of a body that fits SYSTEMONE_REQUEST, by its ids. Raises ApiError, CallError."""
    told = await texts.decide(to_decide(body))
    asked = list(zip(body["questions"].items(), told.answers, strict=True))
    for (name, _), answer in asked:
        if answer.refusal:
            raise refuse(f"questions.{shown(name)[1:-1]}", "not answered", answer.refusal)
    return {
        "id": f"decision-{told.request_id}",
        "object": "structured_decision",
        "created": int(time.time()),
        "model": body["model"],
        "answers": {name: _answer(spec, answer) for (name, spec), answer in asked},
        "usage": {"input_tokens": told.usage.prompt_tokens, "output_tokens": 0},
        "diagnostics": {
            name: {"label_mass": answer.label_mass, "argmax_is_label": answer.argmax_is_label}
            for (name, _), answer in asked
        },
        "joint": None,
    }


def to_decide(body: Body) -> pb.DecideRequest:
    """Return the call for a body that fits SYSTEMONE_REQUEST. Pure. Raises ApiError."""
    request = begun(body)
    state = body["state"] if isinstance(body["state"], str) else as_json(body["state"])
    if instructions := body.get("instructions"):
        request.chat.messages.add(role="system", content=instructions)
        request.chat.messages.add(role="user", content=state)
        request.chat.template_args.update(body.get("chat_template_kwargs", {}))
    else:
        fill_text(request, state, body)
    request.questions.extend(map(_question, body["questions"].values()))
    check_size(request)
    return request


def _question(spec: Body) -> pb.DecideQuestion:
    question = pb.DecideQuestion(instructions=spec.get("instructions") or "")
    criteria = spec.get("criteria") or {}
    match spec["type"]:
        case "noul":
            question.predicate.if_true, question.predicate.if_false = (criteria.get(side) or "" for side in _SIDES)
        case "choice":
            question.choice.options.extend(pb.DecideOption(name=n, description=d or "") for n, d in criteria.items())
        case _:
            question.score.levels.extend(pb.DecideOption(name=name) for name in criteria)
    return question


def _answer(spec: Body, answer: pb.DecideAnswer) -> Json:
    likely, told = list(answer.probabilities), {"type": spec["type"], "confidence": confidence(answer)}
    match spec["type"]:
        case "noul":
            return told | {"noul": likely[0], "probabilities": {"yes": likely[0], "no": likely[1]}}
        case "choice":
            by_name = dict(zip(spec["criteria"], likely, strict=True))
            return told | {"choice": max(by_name, key=by_name.__getitem__), "probabilities": by_name}
        case _:
            legend = {str(place): name for place, name in enumerate(spec["criteria"])}
            by_level = {str(place): probability for place, probability in enumerate(likely)}
            return told | {"score": expected(likely), "legend": legend, "probabilities": by_level}
