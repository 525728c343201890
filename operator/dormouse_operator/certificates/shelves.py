"""One Secret with certificates: who has one in it, and what is known of them. It reads and writes nothing itself.

A holder that is a deployment counts only while the Secret names it as an owner. So the last deployment takes the Secret
along, and files whose deployment is no owner any more are dropped when the Secret is written next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE, Identity
from dormouse_api.mutual_tls import Bundle
from dormouse_operator.certificates.authority import held_of
from dormouse_operator.decide.rotation import Held
from dormouse_operator.manifests import Manifest
from dormouse_operator.manifests.identity import Contents, contents_manifest, shared_file
from dormouse_operator.model import Key

PATIENCE = timedelta(minutes=1)  # with a pod that waits for what it mounts, until the Secret is looked at again

_Reading = tuple[bytes, bytes, tuple[bytes, ...]]  # certificate, whom it is shown to trust, whom we know


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a certificate in a Secret."""

    identity: Identity
    owner: Manifest | None = None  # the deployment, as an owner reference; None for the release, which outlives all

    def file(self, name: str) -> str:
        """Return how the Secret calls a file of this holder."""
        return shared_file(self.identity.name, name) if self.owner else name


class Shelf:
    """Owns what is known of one Secret."""

    def __init__(self, metadata: Manifest) -> None:
        """Take the Secret's metadata, but for its owners."""
        self.key = Key(metadata["namespace"], metadata["name"])
        self.is_known = False  # read since somebody came or went
        self._metadata = metadata
        self._holders: dict[str, Holder] = {}
        self._held: dict[str, Held] = {}
        self._readings: dict[str, tuple[_Reading, Held | None]] = {}  # what was made of the files when last read
        self._gone: set[str] = set()  # UIDs of deployments that are owners no longer
        self._waits: dict[str, datetime] = {}  # since when pods of a holder wait, or the Secret was doubted for them

    def __repr__(self) -> str:
        """Show the counts."""
        return f"Shelf({self.key}: {len(self._held)} of {len(self._holders)} issued)"

    @property
    def num_holders(self) -> int:
        """Return for how many there is to be a certificate."""
        return len(self._holders)

    @property
    def is_over(self) -> bool:
        """Return whether nobody has anything in it, and nobody's files have to be removed."""
        return not self._holders and not self._gone

    @property
    def held(self) -> tuple[Held, ...]:
        """Return what holders have, those who have nothing left out."""
        return tuple(self._held.values())

    def add(self, holder: Holder) -> bool:
        """Have a certificate for this one, too; return whether that is news."""
        name = holder.identity.name
        if self._holders.get(name) == holder:
            return False
        self.remove(name)
        self._holders[name] = holder
        if holder.owner:
            self._gone.discard(holder.owner["uid"])  # forgotten, and seen again before anything was written
        return True

    def remove(self, name: str) -> None:
        """Have none for this one any more; safe without it."""
        former = self._holders.pop(name, None)
        self._held.pop(name, None)
        self._readings.pop(name, None)
        self._waits.pop(name, None)
        self.is_known = False
        if former and former.owner:
            self._gone.add(former.owner["uid"])

    def wait(self, name: str, now: datetime, *, is_waiting: bool) -> None:
        """Know whether a pod of this holder waits for what it mounts."""
        if not is_waiting:
            self._waits.pop(name, None)
        elif name not in self._waits:
            self._waits[name] = now

    def doubt(self, now: datetime) -> None:
        """Have the Secret read again where a pod has waited long enough: somebody may have deleted it."""
        for name in [name for name, since in self._waits.items() if now - since >= PATIENCE]:
            self._waits[name] = now
            self.is_known = False

    def learn(self, contents: Contents, authorities: tuple[bytes, ...]) -> None:
        """Know what the Secret holds of these authorities."""
        ca = contents.files.get(CA_FILE, b"")
        owners = {owner["uid"] for owner in contents.owners}
        self._held.clear()
        for name, holder in self._holders.items():
            reading = (contents.files.get(holder.file(CERT_FILE), b""), ca, authorities)
            is_owner = holder.owner is None or holder.owner["uid"] in owners
            if is_owner and (found := self._look_at(name, reading)):
                self._held[name] = found
        self._gone &= owners
        self.is_known = True

    def _look_at(self, name: str, reading: _Reading) -> Held | None:
        """Return what a holder has; a certificate that did not change is not checked again."""
        known = self._readings.get(name)
        if known is None or known[0] != reading:
            known = self._readings[name] = (reading, held_of(*reading))
        return known[1]

    def disown(self) -> None:
        """Know that the Secret is somebody else's: nothing in it is a holder's, and nothing in it is to be removed."""
        self._held.clear()
        self._gone.clear()
        self.is_known = False

    def due(self, is_due: Callable[[Held | None], bool]) -> list[Identity]:
        """Return who needs another certificate."""
        return [holder.identity for name, holder in self._holders.items() if is_due(self._held.get(name))]

    def says(self, trusted: bytes) -> bool:
        """Return whether it names these authorities to all holders, and nobody's files have to be removed."""
        return not self._gone and all(held.ca == trusted for held in self._held.values())

    def contents(self, stored: Contents, issued: Sequence[Bundle], trusted: bytes) -> Contents:
        """Return what the Secret shall hold: new certificates, and of what is stored whatever has an owner."""
        staying = [owner for owner in stored.owners if owner["uid"] not in self._gone]
        known = {owner["uid"] for owner in staying}
        owners = [holder.owner for holder in self._holders.values() if holder.owner]
        new = [owner for owner in owners if owner["uid"] not in known]
        kept = [name for owner in staying for name in _files_of(owner)] if self._is_shared else [CERT_FILE, KEY_FILE]
        files = {name: stored.files[name] for name in kept if name in stored.files}
        for bundle in issued:
            holder = self._holders[bundle.identity.name]
            files |= {holder.file(CERT_FILE): bundle.cert, holder.file(KEY_FILE): bundle.key}
        return Contents(stored.version, (*staying, *new), {**files, CA_FILE: trusted})

    def manifest(self, contents: Contents) -> Manifest | None:
        """Return the Secret that holds this; None where its last owner went and takes it along."""
        return contents_manifest(self._metadata, contents) if contents.owners or not self._is_shared else None

    @property
    def _is_shared(self) -> bool:
        return not any(holder.owner is None for holder in self._holders.values())


def _files_of(owner: Mapping[str, str]) -> list[str]:
    return [shared_file(owner["name"], name) for name in (CERT_FILE, KEY_FILE)]
