"""A pool's members and their workers, as one pass over it sees them."""

from __future__ import annotations

from dataclasses import replace

from dormouse_operator.decide.pools.plan import plan_pool
from dormouse_operator.model import Activity, Container, DeviceGrant, WorkerState
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pool_observed import Member, PoolObserved
from dormouse_operator.model.pools import Pool, Slot
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_worker
from tests.operator_.decide.pools.nouns import ago, held, key

POOL = Pool(key=key("s"), uid="u", generation=1, device=PoolDevice("gpu.example.com"), num_slots=1)
QUIET = Activity(in_flight=0, held=0, quiet_s=50.0, awake_workers=0, running=0, waiting=0, mean_kv_cache_usage=0.0)
CALLED = replace(QUIET, in_flight=1, held=1, quiet_s=0.0)


class Scene:
    """A pool's members and their workers, of which a test states only what matters."""

    def __init__(self, *slots: Slot, num_slots: int = 1, **fields: object) -> None:
        self.pool = replace(POOL, slots=slots, num_slots=num_slots, **fields)
        self.members, self.answers, self.claims = {}, {}, {}

    def add(
        self, name, *workers, activity=QUIET, slots=("s-0", "s-1"), wanted_ago_s=None, deployment=None, **pod_fields
    ):
        """Add a member with a pod for each worker (None = no container runs), on slot after slot."""
        pods = []
        for index, (worker, slot) in enumerate(zip(workers, slots, strict=False)):
            there = {} if worker else {"container": Container()}
            fields = {"pool": "s", "slot": slot, "uid": f"{name}-{index}", "gate_open": False, **there, **pod_fields}
            pods.append(a_pod(index, **fields))
            if worker:
                self.answers[pods[-1].uid] = worker
        wanted = deployment or a_deployment(key=key(name), replicas=max(1, len(workers)))
        self.members[key(name)] = Member(
            key=key(name), deployment=wanted, pods=tuple(pods), activity=activity, wanted_ago_s=wanted_ago_s
        )
        return self

    def observed(self, **fields):
        defaults = {"gateways_heard": True, "claims": self.claims}
        seen = {**defaults, **fields}
        return PoolObserved(pool=self.pool, now=NOW, members=self.members, answers=self.answers, **seen)

    def plan(self, **fields):
        return plan_pool(self.observed(**fields))


def asleep(level=1, residual_bytes=0, **fields):
    return a_worker(WorkerState.ASLEEP, sleep_level=level, residual_bytes=residual_bytes, instance="i", **fields)


def standby(**fields):
    return a_worker(WorkerState.STANDBY, instance="i", **fields)


def serving(slot="s-0", **fields):
    return a_worker(WorkerState.READY, grant=DeviceGrant(slot=slot, slot_epoch=5), **fields)


def free(name="s-0", **fields):
    return Slot(name=name, since=ago(100), epoch=5, **fields)


def holding(*holders, name="s-0", **fields):
    return held(*holders, name=name, epoch=5, **fields)
