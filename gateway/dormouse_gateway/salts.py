"""Whose cached prefixes a call may share: the cache salt, derived from the API key that the client presents. Pure.

Keys are not verified here (see keys.py): a salt keeps callers with different keys apart and gives no rights. Whoever
presents none shares the prefixes of all who do so.
"""

from __future__ import annotations

import hashlib
from typing import Any

import grpc

from dormouse_api.status import CallError

NO_KEY = ""  # the salt that all callers without a key share; workers take it when no salt is sent at all

_KEY_ENTRY = "authorization"
_SCHEME = "bearer"
_DOMAIN = b"dormouse cache salt\0"  # so that the salt is no digest under which anybody else may know the key


def cache_salt(given: Any) -> str:
    """Return the salt for a call with this metadata: 64 hexadecimal digits, or NO_KEY.

    The same key always gives the same salt, in every gateway, and the key can not be read from it. What is no
    `authorization: Bearer KEY` is no key. Raises CallError INVALID_ARGUMENT if the client presents more than one.
    """
    key = presented_key(given)
    return hashlib.sha256(_DOMAIN + key).hexdigest() if key else NO_KEY


def presented_key(given: Any) -> bytes:
    """Return the API key that a call with this metadata presents; empty if none. Raises CallError for two."""
    entries = [value for key, value in given or () if key.lower() == _KEY_ENTRY]
    if len(entries) > 1:
        message = f"{_KEY_ENTRY} is given {len(entries)} times; it may be given once"
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
    return _bearer_key(entries[0]) if entries else b""


def _bearer_key(entry: str | bytes) -> bytes:
    raw = entry.encode() if isinstance(entry, str) else entry
    scheme, _, key = raw.strip().partition(b" ")
    return key.strip() if scheme.lower() == _SCHEME.encode() else b""
