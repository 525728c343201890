"""A model whose only worker sleeps, and what becomes of requests for it."""

from dormouse_gateway.testing.workers import NAMESPACE, infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey

TINY = ObjectKey(NAMESPACE, "tiny")
ASLEEP = {
    "phase": "Asleep",
    "conditions": [
        {
            "type": "Asleep",
            "status": "True",
            "reason": "Asleep",
            "message": "1 of 1 workers are asleep at level 2; freed 1.00 GiB",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


async def add_asleep(house, worker, **lifecycle):
    """Add a model whose one worker sleeps at level 2."""
    worker.tell_load(ready=False)
    house.kube.put(INFERENCE_DEPLOYMENTS, infd("tiny", lifecycle=lifecycle) | {"status": ASLEEP})
    house.kube.put(PODS, pod("tiny-w0", "tiny", worker.address, ready=False))
    await house.until(lambda: house.gateway.router.pool.endpoints_of(TINY))
    await house.until(lambda: house.gateway.router.catalogue.find("tiny"))


def set_status(house, **status):
    house.kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj.update(status=status))


def held(house):
    house.gateway.holder.check_integrity()
    return len(house.gateway.holder)


def is_wanted(house):
    """Return whether the operator is told to wake the model."""
    return house.gateway.router.activity.activity(TINY).wanted_s is not None


def writes(house):
    return [call for call in house.kube.calls if call.verb not in {"get", "list", "watch"}]


def rejected(house, reason):
    return house.gateway.metrics.value("dormouse_rejected_total", reason=reason)


async def metadata_of(call):
    return {key: value for key, value in await call.trailing_metadata() or () if key.startswith("dormouse-")}
