"""Which deployment answers to a short model name that several want. Pure: operator and gateways decide by this alone.

Gateways tell adapters of one name apart by it, too, with adapters in the place of deployments.

A name stays with its holder. When that is gone, or takes another name, those of its own namespace may have the name at
once, the others only after a grace: what is said to a name by clients who do not know better must not end at another
team's model because somebody deleted something for a minute. Of several that may have it, the oldest does.

A name that begins like a full one, NAMESPACE/…, is of no other namespace once there was a deployment in that one: as
long as the process lives. Clients mean that namespace by it, whether its deployment is there now or not.

What a process has not seen itself it takes from the operator's status (`said_of`): who has the name there goes first,
who waits there goes on to wait, and who had another one there took this one later.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

GRACE_S = 600.0
REASON = "NameTaken"  # of the condition Degraded, while a deployment waits for its name
FIELD = "modelName"  # of the status: which name was looked at, and who keeps the deployment from it


class Scope(StrEnum):
    """Who may be called by a short name."""

    HOLDER = "holder"  # by everybody: one deployment of the cluster
    NAMESPACED = "namespaced"  # by keys of its namespace: one deployment of each namespace
    NONE = "none"  # nobody: namespace/name only


@dataclass(frozen=True, slots=True)
class NameRules:
    """What is set of this."""

    scope: Scope = Scope.HOLDER
    grace_s: float = GRACE_S


class Said(IntEnum):
    """What the operator's status says of a deployment and its name; of several the lesser goes first."""

    HELD = 0  # it has the name
    NOTHING = 1  # it is new, or its operator does not write this yet
    OTHER = 2  # it had another name when that was written: its age does not count
    WAITING = 3  # somebody else has the name, or had it lately


class Key(Protocol):
    """Names a deployment."""

    @property
    def namespace(self) -> str:
        """Return its namespace."""
        ...

    def __lt__(self, other: Any, /) -> bool:
        """Compare with another: of deployments of the same second the lesser one is older."""
        ...

    def __hash__(self) -> int:
        """Be a key of mappings."""
        ...


K = TypeVar("K", bound=Key)


@dataclass(slots=True)
class _Claim:
    created: str  # RFC 3339 in UTC: sorts by time
    standing: Said  # from OTHER on it took the name when it was somebody else's
    free_s: float  # from when on it may have the name


@dataclass(slots=True)
class _Name(Generic[K]):
    spelled: str  # the namespace that it begins with, "" without a slash; there need be none of this name
    claims: dict[K, _Claim] = field(default_factory=dict)
    holder: K | None = None
    former: K | None = None  # who had it last
    until_s: float = -math.inf  # so long only the former one's namespace may have it


class ShortNames(Generic[K]):
    """Who wants which name, and who has it."""

    def __init__(self, rules: NameRules | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the rules; know nobody."""
        self.rules = rules or NameRules()
        self._clock = clock
        self._wanted: dict[K, str] = {}
        self._names: dict[str, _Name[K]] = {}
        self._namespaces: set[str] = set()  # where there are deployments, or were
        self._ends: deque[tuple[float, str]] = deque()  # of graces, in their order

    def __repr__(self) -> str:
        """Show the names that several want, and who they are."""
        rivals = {name: [str(key) for key in self._ranked(known)] for name, known in self._names.items()}
        return f"({len(self._wanted)} deployments, { {name: keys for name, keys in rivals.items() if keys[1:]} })"

    def put(self, key: K, name: str, created: str, *, said: Said = Said.NOTHING) -> bool:
        """Take what a deployment wants to be called; `said` is what its status says of that.

        Returns whether it did not want this name before.
        """
        self._namespaces.add(key.namespace)
        if self._wanted.get(key) == name:
            claim = self._names[name].claims[key]
            if said <= Said.NOTHING:
                claim.free_s, claim.standing = -math.inf, min(claim.standing, said)
            return False
        standing = max(said, Said.OTHER) if key in self._wanted else said
        self.remove(key)
        self._wanted[key] = name
        known = self._names.setdefault(name, _Name(_spelled(name)))
        free_s = self._grace_end(name) if said is Said.WAITING else -math.inf
        known.claims[key] = _Claim(created, standing, free_s)
        may_take = standing < Said.OTHER and not self._is_barred(known, key)
        if known.holder and may_take and self._rank(known, key) < self._rank(known, known.holder):
            known.holder = key  # heard of later, and older
        self._settle(known)
        return True

    def remove(self, key: K) -> None:
        """Forget a deployment. No error if it is not known."""
        name = self._wanted.pop(key, None)
        if name is None:
            return
        known = self._names[name]
        del known.claims[key]
        if known.holder == key:
            known.holder, known.former, known.until_s = None, key, self._grace_end(name)
            self._settle(known)
        self._drop_unused(name)

    def freed(self) -> list[K]:
        """Return who wanted a name whose grace ended since this was last asked."""
        found: list[K] = []
        while self._ends and self._ends[0][0] <= self._clock():
            _, name = self._ends.popleft()
            found += self._names[name].claims if name in self._names else ()
            self._drop_unused(name)
        return found

    def others(self, key: K) -> list[K]:
        """Return who else wants the name that this one wants."""
        name = self._wanted.get(key)
        return [other for other in self._names[name].claims if other != key] if name is not None else []

    def holder(self, name: str) -> K | None:
        """Return who everybody means by the name, None if nobody has it."""
        known = self._names.get(name)
        if known is None or self.rules.scope is not Scope.HOLDER:
            return None
        return self._settle(known)

    def own(self, name: str, is_own: Callable[[K], bool]) -> K | None:
        """Return who is meant by the name among the caller's own, None if nobody is."""
        known = self._names.get(name)
        if known is None or self.rules.scope is Scope.NONE:
            return None
        return next((key for key in self._ranked(known) if is_own(key) and not self._is_barred(known, key)), None)

    def may_lend(self, name: str, namespace: str, *, is_own: bool) -> bool:
        """Return whether something of this namespace that is no deployment may answer to the name.

        `is_own`: it is the caller's. Others' names stay what they mean, or meant lately.
        """
        if self.rules.scope is Scope.NONE or _spelled(name) in self._namespaces - {namespace}:
            return False
        return is_own or (self.rules.scope is Scope.HOLDER and name not in self._names)

    def keeper(self, key: K) -> K | None:
        """Return who has the name that this one wants, or had it until lately; None if nobody is known to."""
        known = self._names[self._wanted[key]]
        match self.rules.scope:
            case Scope.NONE:
                return None
            case Scope.NAMESPACED:
                return next(other for other in self._ranked(known) if other.namespace == key.namespace)
            case _:
                return self._settle(known) or known.former

    def spelled(self, key: K) -> str:
        """Return the other namespace whose full names look like the name that this one wants, "" if none do."""
        known = self._names.get(self._wanted.get(key, ""))
        return known.spelled if known and self._is_barred(known, key) else ""

    def is_waiting(self, key: K) -> bool:
        """Return whether it cannot be called by the name that it wants."""
        if self.rules.scope is Scope.HOLDER and key in self._wanted:
            return self._settle(self._names[self._wanted[key]]) != key
        if self.rules.scope is Scope.NONE or key not in self._wanted:
            return False
        return bool(self.spelled(key)) or self.keeper(key) != key

    def _settle(self, known: _Name[K]) -> K | None:
        """Give the name to whom may have it, unless somebody has it; return who has it."""
        if known.holder is not None and self._is_barred(known, known.holder):
            known.holder = None  # had it before there were deployments in the namespace that it spells
        if known.holder is None:
            known.holder = next((key for key in self._ranked(known) if self._may_have(known, key)), None)
            if known.holder is not None:
                claim, known.former = known.claims[known.holder], None
                claim.standing = min(claim.standing, Said.NOTHING)
        return known.holder

    def _may_have(self, known: _Name[K], key: K) -> bool:
        is_kept = known.former is not None and known.until_s > self._clock() and known.former.namespace != key.namespace
        return not is_kept and known.claims[key].free_s <= self._clock() and not self._is_barred(known, key)

    def _is_barred(self, known: _Name[K], key: K) -> bool:
        """Return whether the name looks like the full name of another namespace's deployment."""
        return known.spelled in self._namespaces and known.spelled != key.namespace

    def _ranked(self, known: _Name[K]) -> list[K]:
        return sorted(known.claims, key=lambda key: (key != known.holder, self._rank(known, key)))

    @staticmethod
    def _rank(known: _Name[K], key: K) -> tuple[Said, str, K]:
        claim = known.claims[key]
        return (claim.standing, claim.created, key)

    def _grace_end(self, name: str) -> float:
        end_s = self._clock() + self.rules.grace_s
        self._ends.append((end_s, name))
        return end_s

    def _drop_unused(self, name: str) -> None:
        """Forget a name that nobody wants and nobody had lately."""
        known = self._names.get(name)
        if known and not known.claims and known.until_s <= self._clock():
            del self._names[name]


def _spelled(name: str) -> str:
    namespace, slash, _ = name.partition("/")
    return namespace if slash else ""


def said_of(status: Mapping[str, Any], name: str) -> Said:
    """Return what a status says of a deployment that wants this name."""
    told: Mapping[str, Any] = status.get(FIELD) or {}
    if told and told.get("name") != name:
        return Said.OTHER
    if told:
        return Said.WAITING if told.get("takenBy") else Said.HELD
    return Said.WAITING if _tells_taken(status.get("conditions") or ()) else Said.NOTHING


def to_status(name: str, taken_by: str) -> dict[str, str]:
    """Return what the operator writes for `said_of` to read; `taken_by` is "" where nobody keeps it from the name."""
    return {"name": name} | ({"takenBy": taken_by} if taken_by else {})


def _tells_taken(conditions: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the condition says it: all that operators of before wrote of a name."""
    return any(
        condition.get("type") == "Degraded" and condition.get("status") == "True" and condition.get("reason") == REASON
        for condition in conditions
    )
