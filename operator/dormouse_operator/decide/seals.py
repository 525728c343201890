"""How an operator knows a pod that it, or one before it, made: by the seal that it put on it. Pure.

A seal is made of the operator's seed. It fits the pod of one name, of one deployment, that was created when it was
made: who reads the pod can copy it, and use the copy only on a pod of the same name that is created within minutes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

SPARE = timedelta(minutes=5)  # how far the clocks of operator and API server may be apart, as with tickets
_LABEL = b"dormouse pods"  # of what the seed serves for many things, this one has a key of its own
_MOST_DIGITS = 12


class Seals:
    """Makes and checks seals with the operator's seeds, the present one first."""

    def __init__(self, seeds: Sequence[str]) -> None:
        """Derive a key of each."""
        self._keys = [hmac.digest(seed.encode(), _LABEL, hashlib.sha256) for seed in seeds]

    def __repr__(self) -> str:
        """Show nothing of the keys."""
        return f"Seals({len(self._keys)} keys)"

    def make(self, deployment_uid: str, pod_name: str, now: datetime) -> str:
        """Return the seal of a pod that is made now."""
        seconds = str(int(now.timestamp()))
        return f"{seconds};{_signed(self._keys[0], deployment_uid, pod_name, seconds)}"

    def fits(self, seal: str, deployment_uid: str, pod_name: str, created: datetime | None) -> bool:
        """Return whether it was made for such a pod, when this one was created. No text makes it raise."""
        seconds, _, signature = seal.partition(";")
        if not (seconds.isascii() and seconds.isdecimal() and len(seconds) <= _MOST_DIGITS) or created is None:
            return False
        given = signature.encode("utf-8", "surrogatepass")
        signed = [_signed(key, deployment_uid, pod_name, seconds).encode() for key in self._keys]
        is_ours = any(hmac.compare_digest(given, each) for each in signed)
        return is_ours and abs(int(seconds) - created.astimezone(UTC).timestamp()) <= SPARE.total_seconds()


def _signed(key: bytes, *parts: str) -> str:
    return hmac.digest(key, ";".join(parts).encode(), hashlib.sha256).hex()
