"""From a checked body to `GenerateRequest`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import struct_pb2

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse, too_large
from dormouse_gateway.openai.reading import parse_arguments
from dormouse_gateway.openai.schemas import DEFAULT_COMPLETION_TOKENS

Body = Mapping[str, Any]

_AS_THEY_ARE = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)
_WHOLE_NUMBERS = ("seed", "n", "max_tokens", "min_tokens")
_LISTS_OF_IDS = ("stop_token_ids", "allowed_token_ids")
_WHOLE_ANSWER_INTERVAL = 64  # tokens in a message where nobody watches them come


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client wants, and how he wants it told."""

    request: pb.GenerateRequest
    is_stream: bool
    with_usage: bool  # in a stream
    with_logprobs: bool
    echo: bool = False


def to_chat(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits CHAT_REQUEST. Raises ApiError."""
    wants_logprobs = bool(body.get("logprobs"))
    request = _request(body, request_id)
    params = request.sampling_params
    if "max_completion_tokens" in body:
        params.max_tokens = int(body["max_completion_tokens"])
    if wants_logprobs:
        params.logprobs = int(body.get("top_logprobs", 0))
    _fill_chat(request.chat, body)
    return _wish(body, request, with_logprobs=wants_logprobs)


def to_completion(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits COMPLETION_REQUEST. Raises ApiError."""
    request = _request(body, request_id)
    params, echo = request.sampling_params, bool(body.get("echo"))
    params.max_tokens = int(body.get("max_tokens", DEFAULT_COMPLETION_TOKENS))
    if "logprobs" in body:
        params.logprobs = int(body["logprobs"])
    _fill_prompt(request, body["prompt"])
    if echo and body.get("stream"):
        raise refuse("echo", "true with stream", "only without stream")
    if echo and "logprobs" in body:
        if params.n > 1:
            raise refuse("echo", f"true with logprobs and n {params.n}", "with logprobs only for one choice")
        params.prompt_logprobs = params.logprobs
    return _wish(body, request, with_logprobs="logprobs" in body, echo=echo)


def _wish(body: Body, request: pb.GenerateRequest, *, with_logprobs: bool, echo: bool = False) -> Wish:
    is_stream = bool(body.get("stream"))
    if not is_stream:
        request.stream_interval = _WHOLE_ANSWER_INTERVAL
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    if request.ByteSize() > MAX_MESSAGE_BYTES:
        raise too_large(f"the request has {request.ByteSize()} bytes as a message", MAX_MESSAGE_BYTES)
    return Wish(request, is_stream, with_usage, with_logprobs, echo)


def _request(body: Body, request_id: str) -> pb.GenerateRequest:
    request = pb.GenerateRequest(model=body["model"], request_id=request_id, priority=int(body.get("priority", 0)))
    params = request.sampling_params
    for name in _AS_THEY_ARE:
        if name in body:
            setattr(params, name, body[name])
    for name in _WHOLE_NUMBERS:
        if name in body:
            setattr(params, name, int(body[name]))
    for name in _LISTS_OF_IDS:
        getattr(params, name).extend(int(token_id) for token_id in body.get(name, ()))
    params.bad_words.extend(body.get("bad_words", ()))
    if "top_k" in body:
        params.top_k = max(0, int(body["top_k"]))
    stop = body.get("stop", ())
    params.stop.extend([stop] if isinstance(stop, str) else stop)
    for token_id, bias in body.get("logit_bias", {}).items():
        params.logit_bias[int(token_id)] = bias
    return request


def _fill_prompt(request: pb.GenerateRequest, prompt: Any) -> None:
    if isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt[0], str):
        request.text = prompt[0]
    else:
        request.token_ids.ids.extend(int(token_id) for token_id in prompt)


def _fill_chat(chat: pb.Chat, body: Body) -> None:
    chat.messages.extend(_message(message) for message in body["messages"])
    if body.get("tool_choice") != "none":
        chat.tools.extend(_struct(tool) for tool in body.get("tools", ()))
    chat.template_args.update(body.get("chat_template_kwargs", {}))


def _message(said: Body) -> pb.ChatMessage:
    message = {name: value for name, value in said.items() if value is not None}
    turn = pb.ChatMessage(role=message["role"], content=_content(message.get("content")))
    for name in ("name", "tool_call_id"):
        if name in message:
            setattr(turn, name, message[name])
    turn.tool_calls.extend(_call(call) for call in message.get("tool_calls", ()))
    return turn


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


def _call(call: Body) -> struct_pb2.Struct:
    """Return the call as templates want it: arguments as an object, not as text."""
    function = call["function"]
    arguments = parse_arguments(function["arguments"] or "{}")
    return _struct({"type": "function", **call, "function": {"name": function["name"], "arguments": arguments}})


def _struct(value: Body) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(value)
    return struct
