"""What a pass over windows of sound takes and gives: frozen, free of tensors, the same for every device."""

from __future__ import annotations

import msgspec


class EncodeWindow(msgspec.Struct, frozen=True, gc=False):
    """A window whose features are read and encoded before the pass decodes."""

    place: int  # in the cache
    tensors: str  # see `AddWindow`


class SpeechRow(msgspec.Struct, frozen=True, gc=False):
    """One window that gets its next token."""

    place: int  # in the cache
    token_ids: list[int]  # prompt and output so far
    num_cached: int  # of them: whose keys and values are in the cache
    num_prompt: int  # of them
    timestamps: bool = True
    temperature: float = 0.0
    seed: int = 0
    start_place: int = -1  # set: the probability that nobody speaks is told, by what follows the token there
    language_ids: tuple[int, ...] = ()  # set: one of these is next, whatever else holds


class SpeechBatch(msgspec.Struct, frozen=True):
    """One pass, never empty."""

    rows: tuple[SpeechRow, ...]
    encode: tuple[EncodeWindow, ...] = ()


class SpeechToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one row got."""

    token_id: int
    logprob: float  # after what is forbidden was forbidden, before the temperature
    is_end: bool = False
    no_speech_prob: float = 0.0


class SpeechOutput(msgspec.Struct, frozen=True):
    """What one pass gave."""

    tokens: list[SpeechToken]  # one for each row, in order
    not_finite: tuple[int, ...] = ()  # places in `rows` whose tokens mean nothing
    unreadable: dict[int, str] = {}  # places in the cache of windows that could not be encoded, and why
