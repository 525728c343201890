"""Pools of endpoints of one deployment, as tests fill and ask them."""

from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.workers.pool import EndpointPool
from dormouse_kube.reflector import ObjectKey

TINY = ObjectKey("default", "tiny")


def pool_of(*endpoints):
    made = EndpointPool()
    for one in endpoints:
        assert made.put(one) == []
    return made


def pick(pool, **how):
    slot = pool.acquire(TINY, **({"need_ready": True} | how))
    return slot and slot.endpoint.pod.name


def told(running=0, waiting=0, *, ready=True):
    return WorkerLoad(running, waiting, 0.0, ready)


def tried(pool, *names):
    """Return these endpoints as tried, at what they are now."""
    found = [one for one in pool.endpoints_of(TINY) if one.pod.name in names]
    assert len(found) == len(names)
    return {one.id: one.openings for one in found}
