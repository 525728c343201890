"""Finds what watches missed: compares lists with what the last passes saw, and marks what differs. Writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, KubeApi, Resource
from dormouse_operator.model import Key
from dormouse_operator.observe import Fingerprint, fingerprint_of

_WORKERS = f"{LABEL_DEPLOYMENT},{LABEL_COMPONENT}={COMPONENT_WORKER}"


async def find_unseen(kube: KubeApi, namespaces: tuple[str, ...], seen: Mapping[Key, Fingerprint]) -> list[Key]:
    """Return the keys whose objects are not as they were seen: changed, new or gone. Two lists per namespace."""
    found: dict[Key, list[Resource]] = defaultdict(list)
    for namespace in namespaces or (None,):
        for obj in (await kube.list(INFERENCE_DEPLOYMENTS, namespace)).items:
            found[Key(obj["metadata"]["namespace"], obj["metadata"]["name"])].append(obj)
        for obj in (await kube.list(PODS, namespace, label_selector=_WORKERS)).items:
            key = Key(obj["metadata"]["namespace"], obj["metadata"]["labels"][LABEL_DEPLOYMENT])
            if key in found:  # pods that outlive their object are the garbage collector's
                found[key].append(obj)
    changed = [key for key, objects in found.items() if seen.get(key) != fingerprint_of(objects)]
    return changed + [key for key in seen if key not in found]
