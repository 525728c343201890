"""How our parts prove their role to each other: short-lived tickets, made out to one peer, signed with a role's key.

    gateway;7d0c…-pod-uid;1790000000;SIGNATURE        role, audience, end in Unix time; base64 of what signs all three

Workers know public keys only, so that nothing in a tenant's pod signs anything; and a ticket that one pod was shown is
of no use at another one, nor for longer than a few minutes. What a caller sends proves nothing about whom it reaches:
that is what certificates are for (`mutual_tls`).

A role's keys come from a seed of its own. Callers sign with the seed of before, too, while there is one: a worker that
was started with its key goes on to know them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dormouse_api.names import METADATA_TICKET, Role

LIFETIME_S = 60  # of a ticket
SKEW_S = 300  # how far the clocks of two nodes may be apart
LEAST_SEED_CHARS = 32
OPERATOR_TO_GATEWAY = "operator to gateway"  # purpose of the key that these two share
PUBLIC_KEY_BYTES = 32
_RENEW_S = LIFETIME_S / 2  # what is left of a ticket when another one takes its place
_MOST_PEERS = 4096  # whose tickets a caller keeps
_MOST_KNOWN = 256  # tickets that a server has checked and remembers
MAX_SHOWN = 4  # in one call: of the present and the former key, and as many to spare
MAX_CHARS = 512  # of a ticket
_MOST_DIGITS = 12  # of its end: what does not fit a float cannot be compared with a clock
_MOST_AHEAD_S = LIFETIME_S + SKEW_S  # how far a ticket that we make can end after now
_CONTEXT = b"dormouse ticket 1\n"  # before everything signed, so that no signature stands for anything else

MetadataPairs = Iterable[tuple[str, str | bytes]]
Proof = tuple[tuple[str, str], ...]  # metadata
Check = Callable[[bytes, bytes], bool]  # signature, what it is said to sign


class BadKey(ValueError):
    """A seed or a key cannot be used; the message says why and does not show it."""


class Signer(Protocol):
    """Signs tickets of one role."""

    def sign(self, said: bytes) -> bytes:
        """Return the signature."""
        ...


class SigningKey:
    """The Ed25519 key of a role's seed."""

    def __init__(self, seed: str, role: Role) -> None:
        """Derive it. Raises BadKey."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # slow to import

        self._key = Ed25519PrivateKey.from_private_bytes(_derived(seed, f"dormouse ed25519 {role}"))

    def __repr__(self) -> str:
        """Show the public part."""
        return f"SigningKey({self.public})"

    @property
    def public(self) -> str:
        """Return what servers check signatures with, as text."""
        return base64.urlsafe_b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, said: bytes) -> bytes:
        """See Signer."""
        return self._key.sign(said)


class SharedKey:
    """A key that caller and server both hold, of a seed: for servers that are ours and may know it."""

    def __init__(self, seed: str, purpose: str) -> None:
        """Derive it; another purpose gives another key. Raises BadKey."""
        self._key = _derived(seed, f"dormouse hmac {purpose}")

    def __repr__(self) -> str:
        """Show nothing."""
        return "SharedKey()"

    def sign(self, said: bytes) -> bytes:
        """See Signer."""
        return hmac.digest(self._key, said, hashlib.sha256)

    def check(self, signature: bytes, said: bytes) -> bool:
        """Return whether this key signed it."""
        return hmac.compare_digest(self.sign(said), signature)


def public_check(public: str) -> Check:
    """Return what checks signatures against a public key. Raises BadKey."""
    raw = read_public_key(public)

    def check(signature: bytes, said: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature  # slow to import: a worker does so at the first ticket
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(raw).verify(signature, said)
        except InvalidSignature:
            return False
        return True

    return check


def read_public_key(text: str) -> bytes:
    """Return the bytes of a public key. Raises BadKey."""
    try:
        raw = base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadKey(f"{text!r} is no public key; allowed is the URL-safe base64 of 32 bytes") from error
    if len(raw) != PUBLIC_KEY_BYTES:
        raise BadKey(f"{text!r} is no public key: it has {len(raw)} bytes; allowed are {PUBLIC_KEY_BYTES}")
    return raw


class TicketBook:
    """The tickets of one caller: makes them, and keeps each until half its time is over."""

    def __init__(self, role: Role, keys: Sequence[Signer], *, clock: Callable[[], float] = time.time) -> None:
        """Take what it signs with: every ticket once with each key; without keys it proves nothing."""
        self._role = role
        self._keys = tuple(keys)
        self._clock = clock
        self._kept: dict[str, tuple[float, Proof]] = {}  # by audience: until when it is used, oldest first

    def __repr__(self) -> str:
        """Show whose they are, and how many."""
        return f"TicketBook({self._role}, {len(self._keys)} keys, {len(self._kept)} tickets)"

    def __bool__(self) -> bool:
        """Return whether it proves anything."""
        return bool(self._keys)

    def proof(self, audience: str) -> Proof:
        """Return the metadata that proves the role to this peer and to nobody else."""
        now_s = self._clock()
        until_s, proof = self._kept.get(audience, (0.0, ()))
        if now_s < until_s <= now_s + LIFETIME_S:  # a clock that was put back must not keep old ones
            return proof
        self._kept.pop(audience, None)
        while len(self._kept) >= _MOST_PEERS:
            del self._kept[next(iter(self._kept))]
        proof = tuple((METADATA_TICKET, self._made_out(key, audience, now_s)) for key in self._keys)
        self._kept[audience] = (now_s + LIFETIME_S - _RENEW_S, proof)
        return proof

    def _made_out(self, key: Signer, audience: str, now_s: float) -> str:
        said = f"{self._role};{audience};{int(now_s) + LIFETIME_S}"
        signature = base64.urlsafe_b64encode(key.sign(_CONTEXT + said.encode())).decode()
        return f"{said};{signature}"


@dataclass(frozen=True, slots=True)
class _Ticket:
    """What a ticket says."""

    role: Role
    audience: str
    ends_s: int
    signature: bytes
    said: bytes


class TicketCheck:
    """Tells which role a call's metadata proves to this server. Remembers the tickets that it has checked."""

    def __init__(
        self,
        audiences: Collection[str],
        keys: Mapping[Role, Sequence[Check]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take under which names tickets may be made out to it, and what checks those of each role.

        Without a name nobody can prove anything to it.
        """
        self._audiences = frozenset(name for name in audiences if name)
        self._keys = {role: tuple(checks) for role, checks in keys.items() if checks}
        self._clock = clock
        self._known: dict[str, _Ticket] = {}  # oldest first

    def __repr__(self) -> str:
        """Show the roles."""
        return f"TicketCheck({', '.join(sorted(self._keys))})"

    def role_of(self, metadata: MetadataPairs | None) -> Role:
        """Return the role that the metadata proves; CLIENT if none, or more than one."""
        shown = _shown(metadata)
        if len(shown) > MAX_SHOWN:
            return Role.CLIENT
        roles = {self._known[text].role for text in shown if not self._complaint(text)}
        return roles.pop() if len(roles) == 1 else Role.CLIENT

    def complaint(self, metadata: MetadataPairs | None) -> str:
        """Return why the metadata proves no role, for people; "" if it does or shows no ticket."""
        shown = _shown(metadata)
        if len(shown) > MAX_SHOWN:
            return f"it shows {len(shown)} tickets; allowed are {MAX_SHOWN}"
        complaints = [self._complaint(text) for text in shown]
        return complaints[0] if all(complaints) and complaints else ""

    def is_astray(self, metadata: MetadataPairs | None) -> bool:
        """Return whether a ticket is good but for whom it is made out to: the call was meant for another server."""
        shown = _shown(metadata)
        return len(shown) <= MAX_SHOWN and any(self._is_astray(_read(text)) for text in shown)

    def _is_astray(self, ticket: _Ticket | None) -> bool:
        if ticket is None or ticket.role not in self._keys or ticket.audience in self._audiences:
            return False
        return not self._untimely(ticket) and self._is_signed(ticket)

    def _complaint(self, text: str) -> str:
        """Return what is wrong with a ticket, "" if nothing is: then it is among the known."""
        ticket = self._known.get(text) or _read(text)
        if ticket is None or ticket.role not in self._keys:
            return "its ticket cannot be read, or is of a role that this server knows no key of"
        if untimely := self._untimely(ticket):
            return untimely
        if text in self._known:
            return ""
        if ticket.audience not in self._audiences:
            return f"its ticket is made out to {ticket.audience!r}, which this server is not"
        if not self._is_signed(ticket):
            return f"its ticket is not signed with a key of the role {ticket.role} that this server was started with"
        while len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[text] = ticket
        return ""

    def _untimely(self, ticket: _Ticket) -> str:
        """Return what is wrong with when a ticket ends, "" if nothing is."""
        late_s = self._clock() - ticket.ends_s
        if late_s > SKEW_S:
            return f"its ticket ended {late_s:.0f} s ago by this server's clock; {SKEW_S} s are allowed"
        if -late_s > _MOST_AHEAD_S:
            words = f"its ticket ends {-late_s:.0f} s ahead by this server's clock"
            return f"{words}; {_MOST_AHEAD_S} s are allowed: do the clocks agree?"
        return ""

    def _is_signed(self, ticket: _Ticket) -> bool:
        return any(check(ticket.signature, ticket.said) for check in self._keys[ticket.role])


def _shown(metadata: MetadataPairs | None) -> list[str]:
    pairs = ((key, value) for key, value in metadata or () if key == METADATA_TICKET)
    return [value if isinstance(value, str) else value.decode("latin-1") for _, value in pairs]


def _read(text: str) -> _Ticket | None:
    """Return what a ticket says, None for anything else."""
    parts = text.split(";") if len(text) <= MAX_CHARS and text.isascii() else []
    if len(parts) != 4 or parts[0] not in set(Role):
        return None
    if not parts[2].isdecimal() or len(parts[2]) > _MOST_DIGITS:
        return None
    try:
        signature = base64.b64decode(parts[3], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    said = _CONTEXT + text.rpartition(";")[0].encode()
    return _Ticket(Role(parts[0]), parts[1], int(parts[2]), signature, said)


def _derived(seed: str, purpose: str) -> bytes:
    """Return 32 bytes of the seed for one purpose. Raises BadKey."""
    from cryptography.hazmat.primitives import hashes  # slow to import
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if len(seed) < LEAST_SEED_CHARS:
        raise BadKey(f"the seed has {len(seed)} characters; at least {LEAST_SEED_CHARS} random ones are needed")
    return HKDF(hashes.SHA256(), 32, salt=None, info=purpose.encode()).derive(seed.encode())


def seeds_of(*texts: str) -> tuple[str, ...]:
    """Return the seeds that there are, each once, the present one first."""
    return tuple(dict.fromkeys(text for text in texts if text))
