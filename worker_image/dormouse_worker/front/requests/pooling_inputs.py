"""Texts for a pass over whole ones: what a call says of them, checked and tokenized. Knows no gRPC context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn, TypeVar

from dormouse_api.limits import MAX_EMBED_INPUTS, MAX_MESSAGE_BYTES, MAX_PRIORITY
from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.front.refusing import check_request_id, refuse
from dormouse_worker.front.requests import validation
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.text.turns import LONG_BYTES

Request = pb.EmbedRequest | pb.ClassifyRequest
Placed = tuple[int, pb.EmbedInput]  # an input, and its place in the call
Item = TypeVar("Item")


def check_common(request: Request | pb.ScoreRequest) -> None:
    """Check what every call over whole texts says. Raises CallError INVALID_ARGUMENT."""
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        refuse("message", f"{size} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    check_request_id(request.request_id)
    if abs(request.priority) > MAX_PRIORITY:
        refuse("priority", str(request.priority), f"from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    cut = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else -1
    if cut != -1 and cut < 1:
        refuse("truncate_prompt_tokens", str(cut), "-1, or at least 1")


def check_inputs(request: Request, vocab_size: int) -> None:
    """Check everything of the inputs that needs no tokenizing. Raises CallError INVALID_ARGUMENT."""
    if not 1 <= len(request.inputs) <= MAX_EMBED_INPUTS:
        refuse("inputs", f"{len(request.inputs)} texts", f"1 to {MAX_EMBED_INPUTS}")
    for place, one in enumerate(request.inputs):
        kind = one.WhichOneof("input")
        if kind is None or (kind == "text" and not one.text) or (kind == "token_ids" and not one.token_ids.ids):
            refuse(f"inputs[{place}]", "empty", "at least 1 character, or 1 token")
        if kind == "token_ids":
            validation.check_token_ids(f"inputs[{place}].token_ids", one.token_ids.ids, vocab_size)


def length_limit(request: Request | pb.ScoreRequest, max_model_len: int) -> int:
    """Return to how many tokens a text is cut; 0 = it is used whole, or refused."""
    most = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else 0
    return max_model_len if most == -1 else min(most, max_model_len)


async def texts_of(model: Model, request: Request, caller: str, max_model_len: int) -> list[list[int]]:
    """Return each input's ids, checked. Several short texts share a turn. Raises CallError."""
    texts = await _token_ids(model, request, caller, max_model_len)
    _check_texts(texts, request, model.card.vocab_size, max_model_len)
    return texts


async def _token_ids(model: Model, request: Request, caller: str, max_model_len: int) -> list[list[int]]:
    special = request.add_special_tokens if request.HasField("add_special_tokens") else True
    most = length_limit(request, max_model_len)

    def ids(placed: Placed) -> list[int]:
        place, one = placed
        if one.WhichOneof("input") == "token_ids":
            return list(one.token_ids.ids)
        if most:
            return model.codec.encode_first(one.text, most, add_special_tokens=special)
        check_fits(f"inputs[{place}]", one.text, model, max_model_len)
        return model.codec.encode(one.text, add_special_tokens=special)

    found: list[list[int]] = []
    for turn in turns(request.inputs, [len(one.text) for one in request.inputs]):
        found += await model.work.run(
            partial(list, map(ids, turn)), caller=caller, num_bytes=sum(_text_bytes(one, most) for _, one in turn)
        )
    return found


def turns(items: Sequence[Item], sizes: Sequence[int], num_bytes: int = 16 << 10) -> list[list[tuple[int, Item]]]:
    """Return items with their places, in groups of about so many bytes: nobody waits for longer than for one group."""
    groups: list[list[tuple[int, Item]]] = []
    room = 0
    for place, (item, size) in enumerate(zip(items, sizes, strict=True)):
        if room <= 0:
            groups.append([])
            room = num_bytes
        groups[-1].append((place, item))
        room -= size + 1
    return groups


def check_fits(field: str, text: str, model: Model, limit: int, *, may_cut: bool = True) -> None:
    """Refuse text that is too long however it is tokenized: a tokenizer may take minutes for a megabyte."""
    if len(text) <= LONG_BYTES or (bound := model.codec.bound) is None:  # sooner tokenized than the bound is known
        return
    if (least := bound.min_tokens(text)) > limit:
        refuse_long(field, f"at least {least} tokens", limit, may_cut=may_cut)


def _text_bytes(one: pb.EmbedInput, most: int) -> int:
    """Return how much of a text is tokenized, about."""
    return min(len(one.text), 16 * most) if most else len(one.text)


def _check_texts(texts: Sequence[Sequence[int]], request: Request, vocab_size: int, limit: int) -> None:
    for place, text in enumerate(texts):
        if not text:
            refuse(f"inputs[{place}]", "0 tokens", "at least 1 token")
        if len(text) > limit:
            refuse_long(f"inputs[{place}]", f"{len(text)} tokens", limit, may_cut=bool(request.inputs[place].text))
        validation.check_made_of(f"inputs[{place}]", text, vocab_size)


def refuse_long(field: str, value: str, limit: int, *, may_cut: bool) -> NoReturn:
    """Refuse what is longer than the model. Raises CallError."""
    more = "; truncate_prompt_tokens -1 cuts texts" if may_cut else ""
    refuse(field, value, f"at most the model length {limit}{more}", reason=CONTEXT_LENGTH_EXCEEDED)
