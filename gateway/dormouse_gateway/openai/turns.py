"""Turns of a conversation, tools and calls, as templates want them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import struct_pb2

from dormouse_api.key_order import key_order
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.reading import parse_arguments


def joined(content: Any) -> str:
    """Return text, or its parts joined by line ends."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


def add_call(turn: pb.ChatMessage, name: str, arguments: Any, call_id: str | None = None) -> None:
    """Add a call to a turn as templates want it: arguments as an object, not as text, in their own order."""
    known = parse_arguments(arguments or "{}") if isinstance(arguments, str) else arguments
    named = {} if call_id is None else {"id": call_id}
    made = {**named, "type": "function", "function": {"name": name, "arguments": known}}
    turn.tool_calls.append(struct(made))
    turn.key_order.extend(key_order([made]))


def struct(value: Mapping[str, Any]) -> struct_pb2.Struct:
    """Return a JSON object as the contract has it."""
    made = struct_pb2.Struct()
    made.update(value)
    return made


def show(chat: pb.Chat, functions: Iterable[Mapping[str, Any]]) -> None:
    """Add functions to a chat as templates know them, in their own order; what is null is left out."""
    for function in functions:
        made = {"type": "function", "function": {name: it for name, it in function.items() if it is not None}}
        chat.tools.append(struct(made))
        chat.key_order.extend(key_order([made]))


def with_one_beginning(turns: Iterable[pb.ChatMessage]) -> list[pb.ChatMessage]:
    """Return the turns, of which the system's first ones are one: most templates take one, and only in front."""
    made: list[pb.ChatMessage] = []
    for turn in turns:
        if len(made) == 1 and made[0].role == turn.role == "system" and not (made[0].parts or turn.parts):
            made[0].content += f"\n\n{turn.content}"
        else:
            made.append(turn)
    return made
