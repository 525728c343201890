"""What the cache gives out: a deployment, or a pool, with what was made for it. Raw mappings; others parse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dormouse_kube.api import Resource
from dormouse_operator.model import Key
from dormouse_operator.model.pools import Replica


class Snapshot(NamedTuple):
    """A deployment and what was made for it, as last heard of."""

    deployment: Resource
    pods: tuple[Resource, ...]
    service: Resource | None  # the one of the deployment's name
    ranks_service: Resource | None  # the one under which the pods of groups find each other
    budget: Resource | None  # the disruption budget of the deployment's name
    policy: Resource | None  # the network policy of the deployment's name
    pre_pull: Resource | None  # the DaemonSet that has its model on nodes
    rival: str  # who has its model name, or had it lately, as NAMESPACE/NAME; "" = itself
    pool: Resource | None  # that it names
    adapters: tuple[Resource, ...]  # InferenceAdapters that name it
    placed: Mapping[Replica, str]  # slots of the pods of that pool's members
    version: int  # of the copies: another one means that something changed
    made: frozenset[str]  # UIDs of pods that the API server gave us as answers to `create`


class AdaptersSnapshot(NamedTuple):
    """The InferenceAdapters that name one base, and the base, as last heard of."""

    adapters: tuple[Resource, ...]
    base: Resource | None
    version: int


class MemberSnapshot(NamedTuple):
    """A deployment that names a pool or has pods there, as last heard of."""

    key: Key
    deployment: Resource | None  # None: it is gone, and pods of it are left
    pods: tuple[Resource, ...]
    made: frozenset[str]  # UIDs of pods that the API server gave us as answers to `create`


class MemberVersion(NamedTuple):
    """Whom to ask for a `MemberSnapshot`, and which one there is now."""

    key: Key
    version: int


class PoolSnapshot(NamedTuple):
    """A pool and whoever has to do with it, as last heard of."""

    pool: Resource
    members: tuple[MemberVersion, ...]
    version: int  # of the copies, those of members included
