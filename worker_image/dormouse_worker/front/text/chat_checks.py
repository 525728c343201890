"""What a chat may say, each refusal naming field, value and limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf import struct_pb2

from dormouse_api.images import BadImage, check_chat_images
from dormouse_api.limits import MAX_CHAT_MESSAGES, MAX_TOOLS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.refusing import refuse
from dormouse_worker.front.text.chat import OWN_VARIABLES
from dormouse_worker.front.text.plain import KeyOrderError, in_order


def check_chat(chat: pb.Chat) -> None:
    """Counts are bounded and template_args leave the template's own variables alone. Raises CallError."""
    if not chat.messages:
        refuse("chat.messages", "empty", "at least 1 message")
    if len(chat.messages) > MAX_CHAT_MESSAGES:
        refuse("chat.messages", f"{len(chat.messages)} messages", f"at most {MAX_CHAT_MESSAGES}")
    if len(chat.tools) > MAX_TOOLS:
        refuse("chat.tools", f"{len(chat.tools)} tools", f"at most {MAX_TOOLS}")
    for name in _taken(chat.template_args.fields):
        refuse("chat.template_args", name, f"names other than {', '.join(OWN_VARIABLES)}")
    if chat.continue_final_message and chat.add_generation_prompt:
        refuse("chat.continue_final_message", "true beside add_generation_prompt", "one of the two")
    check_parts(chat)
    _check_key_order("chat.key_order", chat.tools, chat.key_order)
    for number, message in enumerate(chat.messages):
        _check_key_order(f"chat.messages[{number}].key_order", message.tool_calls, message.key_order)


def check_parts(chat: pb.Chat) -> None:
    """Parts are said, and instead of content; images keep their limits. Raises CallError INVALID_ARGUMENT."""
    for number, message in enumerate(chat.messages):
        field = f"chat.messages[{number}].parts"
        if message.parts and message.content:
            refuse(field, "set beside content", "one of the two")
        for place, part in enumerate(message.parts):
            if part.WhichOneof("part") is None:
                refuse(f"{field}[{place}]", "empty", "text, an image, a video or a sound")
            if part.WhichOneof("part") == "image_sha256":
                refuse(f"{field}[{place}]", "an image by its digest", "the image, which gateways put there")
    try:
        check_chat_images(chat)
    except BadImage as error:
        refuse("chat.messages", error.value, error.limit)
    if chat.continue_final_message and chat.messages[-1].parts:
        refuse("chat.continue_final_message", "true with parts in the final message", "with content alone")


def _check_key_order(field: str, structs: Sequence[struct_pb2.Struct], key_order: Sequence[str]) -> None:
    try:
        if key_order:
            in_order(structs, key_order)
    except KeyOrderError as error:
        refuse(field, str(error), "the names of all members, object by object, or none")


def _taken(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name in OWN_VARIABLES)
