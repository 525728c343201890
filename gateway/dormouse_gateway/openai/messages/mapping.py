"""From a checked body of /v1/messages to the internal request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.pictures import say
from dormouse_gateway.openai.sampling import begin
from dormouse_gateway.openai.structured import constrain_to
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.tools import offered, parsing
from dormouse_gateway.openai.turns import add_call, joined, show, with_one_beginning
from dormouse_gateway.openai.wish import Wish, check_size, checked

Body = Mapping[str, Any]
_BILLING = "x-anthropic-billing-header"  # another one in each request, at the very beginning: nothing would be cached


def to_message(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits MESSAGES_REQUEST. Raises ApiError."""
    request = begin(body, request_id)
    params = request.sampling_params
    params.stop.extend(body.get("stop_sequences", ()))
    if form := _output(body).get("format"):
        constrain_to(params, form)
    request.chat.CopyFrom(chat_of(body))
    request.answer_parsing.CopyFrom(parsing(_tools(body)))
    is_stream = bool(body.get("stream"))
    return Wish(checked([request], is_stream=is_stream), is_stream)


async def count(body: Body, texts: WorkerTexts) -> dict[str, Any]:
    """Return how many tokens a body that fits COUNT_REQUEST is. Raises ApiError, CallError."""
    asked = pb.TokenizeRequest(model=body["model"], chat=chat_of(body))
    check_size(asked)
    return {"input_tokens": len((await texts.tokenize(asked)).token_ids)}


def chat_of(body: Body) -> pb.Chat:
    """Return the conversation."""
    turns = [turn for said in body["messages"] for turn in _turns(said["role"], said["content"])]
    system = _system(body.get("system", ""))
    chat = pb.Chat(messages=with_one_beginning([*system, *turns]))
    show(chat, offered(_tools(body)))
    chat.continue_final_message = turns[-1].role == "assistant" and not turns[-1].tool_calls
    if effort := _output(body).get("effort"):
        chat.template_args.update({"reasoning_effort": effort})
    if "thinking" in body:
        chat.template_args.update({"enable_thinking": body["thinking"]["type"] != "disabled"})
    return chat


def _tools(body: Body) -> Body:
    """Return tools and choice in the form in which a chat has them."""
    chosen = body.get("tool_choice", {"type": "auto"})
    named = {"type": "function", "function": {"name": chosen.get("name")}}
    return {
        "tools": [{"function": _function(one)} for one in body.get("tools", ())],
        "tool_choice": {"auto": "auto", "none": "none", "any": "required", "tool": named}[chosen["type"]],
        "parallel_tool_calls": not chosen.get("disable_parallel_tool_use"),
    }


def _function(said: Body) -> Body:
    strict = {"strict": True} if said.get("strict") else {}
    return {"name": said["name"], "description": said.get("description"), "parameters": said["input_schema"]} | strict


def _output(body: Body) -> Body:
    return body.get("output_config") or {}


def _system(said: Any) -> list[pb.ChatMessage]:
    parts = [{"text": said}] if isinstance(said, str) else said
    told = joined([part for part in parts if part["text"] and not part["text"].startswith(_BILLING)])
    return [pb.ChatMessage(role="system", content=told)] if told else []


def _turns(role: str, content: Any) -> Iterator[pb.ChatMessage]:
    """Yield the turn; results of tools, which stand in a user's turn, are turns of their own before it."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    results = [block for block in blocks if block["type"] == "tool_result"]
    yield from map(_result, results)
    turn = say(pb.ChatMessage(role=role), [block for block in blocks if block["type"] in {"text", "image"}])
    if thoughts := [{"text": block["thinking"]} for block in blocks if block["type"] == "thinking"]:
        turn.reasoning_content = joined(thoughts)
    for block in blocks:
        if block["type"] == "tool_use":
            add_call(turn, block["name"], block["input"], block["id"])
    if not results or turn.content or turn.parts or turn.tool_calls:
        yield turn


def _result(block: Body) -> pb.ChatMessage:
    turn = say(pb.ChatMessage(role="tool", tool_call_id=block["tool_use_id"]), block.get("content"))
    if block.get("is_error") and turn.parts:
        turn.parts.insert(0, pb.ContentPart(text="Error:"))
    elif block.get("is_error"):
        turn.content = f"Error: {turn.content}"
    return turn
