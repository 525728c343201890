"""From a checked body of /v1/responses to the internal request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.pictures import say
from dormouse_gateway.openai.responses.schemas import LOGPROBS
from dormouse_gateway.openai.sampling import begin
from dormouse_gateway.openai.structured import constrain_to
from dormouse_gateway.openai.tools import offered, parsing
from dormouse_gateway.openai.turns import add_call, joined, show, with_one_beginning
from dormouse_gateway.openai.wish import Wish, checked

Body = Mapping[str, Any]
_ASSISTANT = "assistant"


def to_response(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits RESPONSES_REQUEST. Raises ApiError."""
    request = begin(body, request_id)
    params = request.sampling_params
    if "max_output_tokens" in body:
        params.max_tokens = int(body["max_output_tokens"])
    with_logprobs = LOGPROBS in body.get("include", ())
    if with_logprobs:
        params.logprobs = int(body.get("top_logprobs", 0))
    if form := body.get("text", {}).get("format"):
        constrain_to(params, form)
    tools = _tools(body)
    request.chat.CopyFrom(_chat(body, offered(tools)))
    request.answer_parsing.CopyFrom(parsing(tools))
    is_stream = bool(body.get("stream"))
    return Wish(checked([request], is_stream=is_stream), is_stream, with_logprobs=with_logprobs)


def _tools(body: Body) -> Body:
    """Return tools and choice in the form in which a chat has them."""
    chosen = body.get("tool_choice", "auto")
    if not isinstance(chosen, str):
        chosen = _choice(chosen)
    tools = [{"function": {name: it for name, it in one.items() if name != "type"}} for one in body.get("tools", ())]
    return {**body, "tools": tools, "tool_choice": chosen}


def _choice(chosen: Body) -> Body:
    if chosen["type"] == "function":
        return {"type": "function", "function": {"name": chosen["name"]}}
    named = [{"function": {"name": one["name"]}} for one in chosen["tools"]]
    return {"type": "allowed_tools", "allowed_tools": {"mode": chosen["mode"], "tools": named}}


def _chat(body: Body, functions: Iterable[Body]) -> pb.Chat:
    told = body["input"]
    items = [{"role": "user", "content": told}] if isinstance(told, str) else told
    beginning = [pb.ChatMessage(role="system", content=body["instructions"])] if body.get("instructions") else []
    chat = pb.Chat(messages=with_one_beginning([*beginning, *turns_of(items)]))
    show(chat, functions)
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat.template_args.update({"reasoning_effort": effort})
    return chat


def turns_of(items: Iterable[Body]) -> list[pb.ChatMessage]:
    """Return the turns; what an assistant thought, said and called in a row is one."""
    turns: list[pb.ChatMessage] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            turns.append(say(pb.ChatMessage(role="tool", tool_call_id=item["call_id"]), item["output"]))
        elif kind == "message" and item["role"] != _ASSISTANT:
            role = "system" if item["role"] == "developer" else item["role"]  # templates know no developers
            turns.append(say(pb.ChatMessage(role=role), item["content"]))
        else:
            _add_to(_assistants(turns, kind), item, kind)
    return turns


def _assistants(turns: list[pb.ChatMessage], kind: str) -> pb.ChatMessage:
    """Return the assistant's turn that goes on with an item of this kind, a new one where none does."""
    last = turns[-1] if turns and turns[-1].role == _ASSISTANT else None
    has_spoken = last is not None and bool(last.content or last.parts or last.tool_calls)
    if last is None or (has_spoken and kind != "function_call"):
        turns.append(pb.ChatMessage(role=_ASSISTANT))
    return turns[-1]


def _add_to(turn: pb.ChatMessage, item: Body, kind: str) -> None:
    match kind:
        case "function_call":
            add_call(turn, item["name"], item["arguments"], item["call_id"])
        case "reasoning":
            turn.reasoning_content += joined(item.get("content") or item["summary"])
        case _:
            say(turn, item["content"])
