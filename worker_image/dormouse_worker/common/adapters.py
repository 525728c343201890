"""What engine and front say to each other of adapters. An adapter is known by its digest; names are the front's."""

from __future__ import annotations

import re

import msgspec

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,252}")  # what the front may call one


class AdapterInfo(msgspec.Struct, frozen=True):
    """One adapter that the engine holds."""

    digest: str  # hexadecimal SHA-256 over its configuration and its weights
    rank: int  # 0 = it is a soft prompt
    num_bytes: int  # of one slot's memory, whatever its rank
    is_pinned: bool = False
    invocation: tuple[int, ...] = ()  # tokens from whose last place in a prompt on it is used; () = from the beginning
    num_virtual_tokens: int = 0  # vectors of a soft prompt, in front of each prompt
    has_keys: bool = False  # these are keys and values, which no pass computes


class AdapterList(msgspec.Struct, frozen=True):
    """All adapters of an engine."""

    loaded: list[AdapterInfo]
    lost: dict[str, str] = {}  # digest → why it cannot be used any more
