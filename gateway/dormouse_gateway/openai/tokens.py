"""/tokenize and /detokenize, as vLLM has them: which tokens a prompt is, which text tokens are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import refuse
from dormouse_gateway.openai.mapping import chat_of
from dormouse_gateway.openai.schema_kit import BOOLEAN, Json, array, request, text
from dormouse_gateway.openai.schemas import (
    CONTINUE,
    GENERATION_PROMPT,
    MESSAGES,
    MODEL,
    TEMPLATE_KWARGS,
    TOKEN_ID,
    TOOLS,
)
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.wish import check_size

_OF_CHATS: Mapping[str, Json] = {
    "tools": TOOLS,
    "add_generation_prompt": GENERATION_PROMPT,
    "continue_final_message": CONTINUE,
    "chat_template_kwargs": TEMPLATE_KWARGS,
}
TOKENIZE_REQUEST = request(
    {"model": MODEL},
    {
        "prompt": text() | {"description": "Text. This or messages."},
        "messages": MESSAGES | {"description": "A conversation, rendered by the model's template. This or prompt."},
        **_OF_CHATS,
        "add_special_tokens": BOOLEAN | {"description": "Default: true for a prompt, false for messages."},
        "return_token_strs": BOOLEAN | {"description": "Tell the text of each token, too."},
    },
)
DETOKENIZE_REQUEST = request(
    {"model": MODEL, "tokens": array(TOKEN_ID, MAX_MESSAGE_BYTES) | {"description": "Token ids."}}, {}
)


async def tokenize(body: Mapping[str, Any], texts: WorkerTexts) -> Json:
    """Return the tokens of a body that fits TOKENIZE_REQUEST. Raises ApiError, CallError."""
    token_ids = list((await texts.tokenize(to_tokenize(body))).token_ids)
    strings = None
    if body.get("return_token_strs"):
        known = await texts.of(token_ids)
        strings = [known[token_id] for token_id in token_ids]
    max_model_len = (await texts.describe()).max_model_len
    return {"count": len(token_ids), "max_model_len": max_model_len, "tokens": token_ids, "token_strs": strings}


async def detokenize(body: Mapping[str, Any], texts: WorkerTexts) -> Json:
    """Return the text of the tokens, special ones included. Raises CallError."""
    return {"prompt": await texts.joined(map(int, body["tokens"]), skip_special_tokens=False)}


def to_tokenize(body: Mapping[str, Any]) -> pb.TokenizeRequest:
    """Return what to ask a worker. Pure. Raises ApiError."""
    if "prompt" in body and (misplaced := [name for name in ("messages", *_OF_CHATS) if name in body]):
        raise refuse(misplaced[0], "set beside prompt", "only without")
    asked = pb.TokenizeRequest(model=body["model"])
    if "prompt" in body:
        asked.text = body["prompt"]
    elif "messages" in body:
        asked.chat.CopyFrom(chat_of(body))
    else:
        raise refuse("prompt", "missing", "prompt or messages")
    if "add_special_tokens" in body:
        asked.add_special_tokens = body["add_special_tokens"]
    check_size(asked)
    return asked
