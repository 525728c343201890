"""Where in a prompt an activated LoRA begins: at the last place of its invocation, as in peft. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dormouse_worker.common.adapters import AdapterInfo


class Activation(NamedTuple):
    """What of an adapter a prompt asks for; all that is generated has what its last token has."""

    adapter: str  # a digest; "" = the base alone
    start: int  # the first token that has the adapter


BASE = Activation("", 0)


def activate(info: AdapterInfo, prompt_token_ids: Sequence[int]) -> Activation:
    """Return from where on a prompt has an adapter. One that does not invoke it is the base's."""
    if not info.invocation:
        return Activation(info.digest, 0)
    start = last_place(prompt_token_ids, info.invocation)
    return BASE if start is None else Activation(info.digest, start)


def last_place(token_ids: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Return where some tokens, at least one, begin for the last time; None = nowhere."""
    backwards, wanted = list(reversed(token_ids)), list(reversed(wanted))
    end = -1
    while True:
        try:
            end = backwards.index(wanted[0], end + 1)
        except ValueError:
            return None
        if backwards[end : end + len(wanted)] == wanted:
            return len(backwards) - end - len(wanted)
