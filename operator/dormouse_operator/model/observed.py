"""Everything that one reconcile saw, as one value: facts only. What follows from them is a `Situation`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dormouse_operator.model.activity import Activity
from dormouse_operator.model.adapters import HeldAdapter
from dormouse_operator.model.ladder import SleepLevel
from dormouse_operator.model.picker import PoolSeen
from dormouse_operator.model.pools import Pool, Replica
from dormouse_operator.model.running import Download, Pod, Worker
from dormouse_operator.model.wanted import Deployment

Child = Mapping[str, Any]  # an object of the deployment's name, as the API server keeps it


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The Service of the deployment's name."""

    is_ours: bool
    is_current: bool  # holds what we would apply


@dataclass(frozen=True, slots=True)
class ChildState:
    """The PodDisruptionBudget or the NetworkPolicy of the deployment's name: not every deployment has one."""

    uid: str
    is_ours: bool
    is_current: bool  # holds what we would apply


@dataclass(frozen=True, slots=True)
class PrePullState(ChildState):
    """The DaemonSet that has the model on nodes."""

    num_nodes: int | None = None  # that shall have it; None = its controller has not seen it yet
    num_ready: int = 0  # of these, that have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How deep a deployment has to sleep at least, as a node's host memory is short, and which in words."""

    level: SleepLevel
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """How often somebody lately wrote replicas over those that somebody else had written."""

    num_writes: int = 0
    writers: tuple[str, ...] = ()  # field managers, where spec.scaling is not set and nobody but them may write


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a deployment has to do with others that have the same GPU, outside of pools."""

    shares: str = ""  # which GPU, with whom, in words
    yields_for: str = ""  # who waits for it to sleep, once nobody calls it; "" = nobody
    is_held: bool = False  # it sleeps, and may not wake now
    waits_for: str = ""  # it is called and held: whose sleep it waits for
    complaint: str = ""  # which field keeps it from taking turns; "" = none


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the cluster, the gateways, the workers and the last pass told. Nothing here was decided."""

    deployment: Deployment
    now: datetime
    epoch: int = 0  # of this operator
    pods: tuple[Pod, ...] = ()  # that name the deployment's kind as owner; of several pods of a replica the leader
    followers: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)  # by UID of the leader, whether it is there
    foreign: tuple[str, ...] = ()  # names of pods with our labels that belong to no deployment
    made: frozenset[str] = frozenset()  # UIDs of pods that this very process created
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by pod name: what its claims hold
    activity: Activity | None = None  # what gateways serve; None = not known
    wanted_ago_s: float | None = None  # since a request last waited for it to wake at any gateway; None = none did
    contest: Contest = Contest()  # who writes replicas that others write, too
    canary_fault: str = ""  # why a gateway gives this try of a canary no more requests; "" = none said so
    has_standing: bool = False  # there is the deployment whose requests the canary shall share
    pressure: Pressure | None = None  # how deep it has to sleep for lack of host memory; None = as it does
    turn: Turn | None = None  # on a GPU that others have, too; None = it has its own
    answers: Mapping[str, Worker] = field(default_factory=dict)  # by pod name, of those that were asked and answered
    downloads: Mapping[str, Download] = field(default_factory=dict)  # by pod name: how far those are that fetch a model
    held_adapters: Mapping[str, tuple[HeldAdapter, ...]] = field(default_factory=dict)  # by pod name, as workers told
    unreachable: Mapping[str, str] = field(default_factory=dict)  # by pod name: why others that were asked did not
    refusing: Mapping[str, str] = field(default_factory=dict)  # by pod name: why its worker takes us for no operator
    refusals: Mapping[str, str] = field(default_factory=dict)  # by pod name: why its worker did not do the last action
    rejections: Mapping[str, str] = field(default_factory=dict)  # by "Kind name": the API server's words about a write
    dropped: tuple[str, ...] = ()  # fields of the last status that the API server did not keep
    forbidden: str = ""  # the API server's words about the right that the last pass lacked, verb and resource in them
    service: Child | None = None
    ranks_service: Child | None = None  # under which the pods of groups find each other
    budget: Child | None = None  # the PodDisruptionBudget
    policy: Child | None = None  # the NetworkPolicy
    pre_pull: Child | None = None  # the DaemonSet
    inference_pool: PoolSeen | None = None  # None = not looked for: none is wanted, and none was
    pool: Pool | None = None  # that it names, as written last; None = it names none, or there is none of that name
    placed: Mapping[Replica, str] = field(default_factory=dict)  # slots of the pods of that pool's members
    name_owner: str = ""  # who has its model name, as NAMESPACE/NAME, or had it lately; "" = itself
