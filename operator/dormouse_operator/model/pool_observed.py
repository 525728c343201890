"""Everything that one look at a pool saw, as one value: facts only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dormouse_operator.model.activity import Activity
from dormouse_operator.model.pools import Pool, Replica, Slot
from dormouse_operator.model.running import Pod, Worker
from dormouse_operator.model.wanted import Deployment, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotClaim:
    """The ResourceClaim of a slot, or the pod that reserves its devices."""

    uid: str = ""  # "" = there is none
    is_ours: bool = False  # made for this very pool
    is_deleting: bool = False
    devices: tuple[str, ...] = ()  # as DRIVER/POOL/DEVICE, or as a device plugin calls them; none = not allocated
    reserved_for: frozenset[str] = frozenset()  # UIDs of the pods that have them
    node: str = ""  # of the pod that reserves them
    complaint: str = ""  # why a pod that should reserve devices has none
    has_ended: bool = False  # it did reserve them, and never will again


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A deployment that names the pool, or that has pods there."""

    key: Key
    deployment: Deployment | None = None  # None: it is gone, or its spec cannot be read
    pods: tuple[Pod, ...] = ()  # on slots of this pool
    names_pool: bool = True  # False: it is on its way out
    activity: Activity | None = None  # None = not known
    wanted_ago_s: float | None = None  # since a request last waited for it to wake at any gateway; None = none did

    def pods_of(self, index: int) -> Iterator[Pod]:
        """Yield the pods of one replica: more than one while one of them still goes."""
        return (pod for pod in self.pods if pod.index == index)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObserved:
    """What the cluster, the gateways and the workers told of one pool, and what its last commands met."""

    pool: Pool
    now: datetime
    members: Mapping[Key, Member] = field(default_factory=dict)
    answers: Mapping[str, Worker] = field(default_factory=dict)  # by UID of the pod, of those that answered
    silent_s: Mapping[str, float] = field(default_factory=dict)  # by UID of the pod: how long others have not
    refused: Mapping[Replica, int] = field(default_factory=dict)  # epoch of the slot at which it refused, as we heard
    claims: Mapping[str, SlotClaim] = field(default_factory=dict)  # by slot, of those that were looked at
    gateways_heard: bool = False

    def recorded(self, name: str) -> Slot | None:
        """Return a slot as it was written last, None if it never was."""
        return next((slot for slot in self.pool.slots if slot.name == name), None)

    def stays(self, slot: str) -> bool:
        """Return whether a slot is to go on: it is wanted, and nobody has taken its claim from its pods."""
        claim = self.claims.get(slot)
        is_going = bool(claim and claim.is_deleting) or self.robbed_pod(slot) is not None
        return slot in self.pool.slot_names and not (is_going or self.twin_of(slot))

    def twin_of(self, slot: str) -> str:
        """Return an earlier slot that has a device of this one, "" for none: a device plugin may hand one out twice."""
        claims = ((name, self.claims.get(name, SlotClaim())) for name in self.pool.slot_names)
        own = self.claims.get(slot, SlotClaim())
        known = set(own.devices)
        twins = (name for name, claim in claims if claim.node == own.node and not known.isdisjoint(claim.devices))
        first = next(twins, slot)
        return "" if first == slot else first

    def robbed_pod(self, slot: str) -> Pod | None:
        """Return a pod on a slot whose devices the cluster may give to others: its claim does not count it any more.

        The scheduler counts a pod before it has a node, and nothing but its end takes it out. Somebody did by force.
        """
        claim = self.claims.get(slot)
        if claim is None:
            return None
        placed = (pod for _, pod in self.pods_on(slot) if pod.is_scheduled and not (pod.is_deleting or pod.has_ended))
        return next((pod for pod in placed if not claim.devices or pod.uid not in claim.reserved_for), None)

    def pods_on(self, slot: str) -> Iterator[tuple[Member, Pod]]:
        """Yield the pods on a slot."""
        return ((member, pod) for member in self.members.values() for pod in member.pods if pod.slot == slot)

    def answers_on(self, slot: str) -> Iterator[Worker]:
        """Yield what workers on a slot say."""
        return (self.answers[pod.uid] for _, pod in self.pods_on(slot) if pod.uid in self.answers)

    def node_of(self, slot: str) -> str:
        """Return the node of a slot's devices, as its pods tell; "" while none has a node."""
        reserved = self.claims.get(slot, SlotClaim()).node
        return reserved or next((pod.node for _, pod in self.pods_on(slot) if pod.node), "")

    def num_pods_on(self, slot: str) -> int:
        """Return how many pods are on a slot, whatever becomes of them."""
        return sum(1 for _ in self.pods_on(slot))
