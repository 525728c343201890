"""What workers are told of a caller: whose cached prefixes it may share, and whose turns it takes. Pure.

The cache salt is made of the API key that the client presents, the caller's name of who was let in (`Caller.name`).

Keys are not verified here (see keys.py): a salt keeps callers with different keys apart and gives no rights. Whoever
presents none shares the prefixes of all who do so.

The salt is keyed with a secret of the release. A worker that sees a salt, or measures how fast a prefix answers, can
not try out which API key it belongs to; and one key has other salts in another release. With another secret all salts
are others: what workers have cached is found by nobody any more, and makes room in time.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import grpc

from dormouse_api.status import CallError

NO_KEY = ""  # the salt that all callers without a key share; workers take it when no salt is sent at all

_KEY_ENTRY = "authorization"
_SCHEME = "bearer"
_LABEL = b"dormouse cache salt"  # of what the secret serves for many things, this one has a key of its own
_CALLER_LABEL = b"dormouse caller"  # and this one


class Salts:
    """Makes salts with a secret that all gateways of a release share."""

    def __init__(self, secret: str = "") -> None:  # nosec B107  # none = a gateway without a release
        """Derive the salts' own key from the secret."""
        self._key = hmac.digest(secret.encode(), _LABEL, hashlib.sha256)
        self._caller_key = hmac.digest(secret.encode(), _CALLER_LABEL, hashlib.sha256)

    def __repr__(self) -> str:
        """Show nothing of the secret."""
        return "Salts()"

    def salt(self, given: Any) -> str:
        """Return the salt for a call with this metadata: 64 hexadecimal digits, or NO_KEY.

        The same key always gives the same salt, in every gateway of the release. What is no `authorization: Bearer KEY`
        is no key. Raises CallError INVALID_ARGUMENT if the client presents more than one.
        """
        key = presented_key(given)
        return hmac.digest(self._key, key, hashlib.sha256).hex() if key else NO_KEY

    def alias(self, name: str) -> str:
        """Return what workers call a caller of this name: 64 hexadecimal digits that tell them nothing of it."""
        return hmac.digest(self._caller_key, name.encode(), hashlib.sha256).hex()


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
