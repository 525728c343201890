"""From the messages of a request to what templates know. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.text.plain import in_order, plain_dict


def chat_arguments(chat: pb.Chat) -> dict[str, Any]:
    """Return what `ChatTemplates.render` takes."""
    begins_turn = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else None
    return {
        "messages": [message_dict(message) for message in chat.messages],
        "tools": in_order(chat.tools, chat.key_order) or None,
        "add_generation_prompt": not chat.continue_final_message if begins_turn is None else begins_turn,
        "template_args": plain_dict(chat.template_args),
        "continue_final_message": chat.continue_final_message,
    }


def message_dict(message: pb.ChatMessage) -> Mapping[str, Any]:
    """Return a turn in the form that templates know; fields that are not set are not there."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.parts:
        turn["content"] = [_part_dict(part) for part in message.parts]
    if message.HasField("name"):
        turn["name"] = message.name
    if message.HasField("reasoning_content"):
        turn["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        turn["tool_calls"] = in_order(message.tool_calls, message.key_order)
    if message.HasField("tool_call_id"):
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _part_dict(part: pb.ContentPart) -> Mapping[str, str]:
    kind = part.WhichOneof("part") or "text"
    return {"type": "text", "text": part.text} if kind == "text" else {"type": kind}
