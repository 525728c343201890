"""When the authority was replaced: who is trusted, who issues, and when the next step may come. Pure but for two times.

    seen ──▶ everybody is told to trust both ── SPREAD ──▶ certificates by the new one ── SPREAD ──▶ trust it alone

What a Secret says reaches its processes within two minutes (`renewal`); each step waits until the one before has. Only
what the Secrets hold counts, so an operator that starts anew goes on where they stand, and waits the time once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

SPREAD = timedelta(seconds=150)
PATIENCE = timedelta(seconds=600)  # so long a Secret that cannot be read or written holds the others up


@dataclass(frozen=True, slots=True)
class Held:
    """What one holder of a certificate has."""

    issuer: bytes  # the authority's certificate, PEM
    begin: datetime
    end: datetime
    ca: bytes  # its file of authorities, as it is
    trusts: frozenset[bytes]  # those of our authorities that are in there, each as PEM


@dataclass(slots=True)
class Rotation:
    """Since when all Secrets trust the present authority, and since when all certificates are of it."""

    began: datetime
    trusted_since: datetime | None = None
    issued_since: datetime | None = None

    def look(self, holders: Iterable[Held], present: bytes, now: datetime) -> None:
        """Take what all holders have now."""
        seen = list(holders)
        is_trusted = all(present in each.trusts for each in seen)
        is_issued = all(present == each.issuer for each in seen)
        self.trusted_since = (self.trusted_since or now) if is_trusted else None
        self.issued_since = (self.issued_since or now) if is_issued else None

    def may_leave_out(self, now: datetime) -> bool:
        """Return whether those whose Secrets cannot be read or written are waited for no longer."""
        return now - self.began >= PATIENCE

    def may_issue(self, now: datetime) -> bool:
        """Return whether everybody accepts what the present authority issues."""
        return self.trusted_since is not None and now - self.trusted_since >= SPREAD

    def may_drop(self, now: datetime) -> bool:
        """Return whether nobody shows a certificate of a former authority any more."""
        return self.issued_since is not None and now - self.issued_since >= SPREAD
