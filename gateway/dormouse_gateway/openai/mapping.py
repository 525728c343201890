"""From a checked body of chat or completions to the internal request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.limits import MAX_REQUEST_ID_CHARS
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.pictures import say
from dormouse_gateway.openai.sampling import begin
from dormouse_gateway.openai.schemas import DEFAULT_COMPLETION_TOKENS, MAX_PROMPTS
from dormouse_gateway.openai.tools import offered, parsing
from dormouse_gateway.openai.turns import add_call, joined, show
from dormouse_gateway.openai.wish import Wish, checked

Body = Mapping[str, Any]


def to_chat(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits CHAT_REQUEST. Raises ApiError."""
    wants_logprobs = bool(body.get("logprobs"))
    request = begin(body, request_id)
    params = request.sampling_params
    if "max_completion_tokens" in body:
        params.max_tokens = int(body["max_completion_tokens"])
    if wants_logprobs:
        params.logprobs = int(body.get("top_logprobs", 0))
    request.chat.CopyFrom(chat_of(body))
    request.answer_parsing.CopyFrom(parsing(body))
    if "prediction" in body:
        request.prediction = joined(body["prediction"]["content"])
    return _wish(body, [request], with_logprobs=wants_logprobs)


def to_completion(body: Body, request_id: str) -> Wish:
    """Return the wish of a body that fits COMPLETION_REQUEST. Raises ApiError."""
    first = begin(body, request_id)
    params, echo = first.sampling_params, bool(body.get("echo"))
    params.max_tokens = int(body.get("max_tokens", DEFAULT_COMPLETION_TOKENS))
    if "logprobs" in body:
        params.logprobs = int(body["logprobs"])
    _check_echo(body, params, echo=echo)
    if echo and "logprobs" in body:
        params.prompt_logprobs = max(params.logprobs, params.prompt_logprobs)
    without_answer = params.max_tokens == 0
    params.max_tokens = max(1, params.max_tokens)  # the least that a worker makes
    prompts = list(_with_prompts(first, body["prompt"]))
    if len(prompts) * max(1, params.n) > MAX_PROMPTS:
        raise refuse("prompt", f"{len(prompts)} prompts with n {max(1, params.n)}", f"{MAX_PROMPTS} answers together")
    return _wish(body, prompts, with_logprobs="logprobs" in body, echo=echo, without_answer=without_answer)


def chat_of(body: Body) -> pb.Chat:
    """Return the conversation of a chat's body, also of one that is to be counted only."""
    chat = pb.Chat(messages=[_turn(message) for message in body["messages"]])
    show(chat, offered(body))
    if "reasoning_effort" in body:
        chat.template_args.update({"reasoning_effort": body["reasoning_effort"]})
    chat.template_args.update(body.get("chat_template_kwargs", {}))
    if "add_generation_prompt" in body:
        chat.add_generation_prompt = body["add_generation_prompt"]
    chat.continue_final_message = bool(body.get("continue_final_message"))
    return chat


def _check_echo(body: Body, params: pb.SamplingParams, *, echo: bool) -> None:
    if echo and body.get("stream"):
        raise refuse("echo", "true with stream", "only without stream")
    if echo and "logprobs" in body and params.n > 1:
        raise refuse("echo", f"true with logprobs and n {params.n}", "with logprobs only for one choice")
    if params.max_tokens == 0 and not echo:
        raise refuse("max_tokens", "0", "at least 1, or 0 with echo")


def _wish(body: Body, prompts: list[pb.GenerateRequest], **more: bool) -> Wish:
    is_stream = bool(body.get("stream"))
    if is_stream and "prompt_logprobs" in body:
        raise refuse("prompt_logprobs", "set with stream", "only without stream")
    return Wish(
        prompts=checked(prompts, is_stream=is_stream),
        is_stream=is_stream,
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        with_prompt_logprobs="prompt_logprobs" in body,
        with_token_ids=bool(body.get("return_token_ids")),
        **more,
    )


def _with_prompts(first: pb.GenerateRequest, prompt: Any) -> list[pb.GenerateRequest]:
    """Return a request for each prompt; workers take no two of one id."""
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], (int, float)) else prompt
    made = []
    for index, one in enumerate(prompts):
        request = pb.GenerateRequest()
        request.CopyFrom(first)
        if index:
            request.request_id = f"{first.request_id[: MAX_REQUEST_ID_CHARS - 4]}-{index}"
        if isinstance(one, str):
            request.text = one
        else:
            request.token_ids.ids.extend(int(token_id) for token_id in one)
        made.append(request)
    return made


def _turn(said: Body) -> pb.ChatMessage:
    message = {name: value for name, value in said.items() if value is not None}
    turn = say(pb.ChatMessage(role=message["role"]), message.get("content"))
    for name in ("name", "tool_call_id"):
        if name in message:
            setattr(turn, name, message[name])
    if thought := message.get("reasoning_content", message.get("reasoning")):
        turn.reasoning_content = thought
    for one in message.get("tool_calls", ()):
        add_call(turn, one["function"]["name"], one["function"]["arguments"], one.get("id"))
    return turn
