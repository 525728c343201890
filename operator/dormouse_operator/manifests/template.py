"""Merges spec.template over our pod as Kubernetes' strategic merge patch does, and says what it must not change. Pure.

Objects are merged field by field. Lists with a merge key are merged item by item, new items behind ours; all other
lists (args, tolerations, envFrom, …) are replaced as a whole. null removes a field. There is no $patch directive: it
reaches the API server, which refuses it by its name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from dormouse_api.names import CONTROL_PORT, GROUP, INFERENCE_PORT, METRICS_PORT, READINESS_GATE
from dormouse_operator.manifests.common import Manifest
from dormouse_operator.parse import CONTAINER, DOWNLOADER

# patchMergeKey of every list of a pod that has one; source: k8s.io/api v0.36.1, core/v1/types.go (PodSpec, Container).
MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
}
# patchStrategy retainKeys: a union, of which the user's item names the member; what it does not name goes.
RETAIN_KEYS = frozenset({"volumes", "resourceClaims"})

_OWN_LABELS = ("name", "instance", "part-of", "managed-by", "component")  # of app.kubernetes.io/
_OWN_PORTS = {INFERENCE_PORT, CONTROL_PORT, METRICS_PORT}
_OWN_FIELDS = ("image", "command", "args")  # of the containers that are ours
_OWN_ENV_PREFIX = "DORMOUSE_"


def merge_template(pod: Manifest, template: Mapping[str, Any]) -> Manifest:
    """Return the pod with the template merged over it. Expects a template without a complaint; changes neither."""
    labels, annotations = (dict((template.get("metadata") or {}).get(name) or {}) for name in ("labels", "annotations"))
    metadata = dict(pod["metadata"])
    metadata["labels"] = {**labels, **metadata["labels"]}
    metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return {**pod, "metadata": metadata, "spec": merge(pod["spec"], template.get("spec") or {})}


def merge(ours: Any, theirs: Any, name: str = "") -> Any:
    """Return `theirs` merged over `ours`; `name` is the field that holds them."""
    if isinstance(theirs, Mapping):
        return _merge_objects(ours if isinstance(ours, Mapping) else {}, theirs)
    if isinstance(theirs, list) and isinstance(ours, list) and name in MERGE_KEYS:
        return _merge_items(ours, theirs, name)
    return [merge(None, item) for item in theirs] if isinstance(theirs, list) else theirs


def _merge_objects(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(ours))
    for key, value in theirs.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(ours.get(key), value, key)
    return merged


def _merge_items(ours: list[Any], theirs: list[Any], name: str) -> list[Any]:
    key = MERGE_KEYS[name]
    result = copy.deepcopy(ours)
    for item in theirs:
        place = next((i for i, own in enumerate(result) if own[key] == item[key]), None)
        if place is None:
            result.append(merge(None, item))
            continue
        base = result[place]
        retained = {field: base[field] for field in base if field in item} if name in RETAIN_KEYS else base
        result[place] = merge(retained, item)
    return result


def template_complaint(template: Mapping[str, Any], *, has_downloader: bool = True) -> str:
    """Return what the template may not say, naming the field and the remedy; "" if it can be merged.

    `has_downloader` tells whether the init container of that name is ours.
    """
    return next(_complaints(template, has_downloader=has_downloader), "")


def _complaints(template: Mapping[str, Any], *, has_downloader: bool) -> Iterator[str]:
    """Yield what is wrong, to be read no further than the first: each line relies on those before."""
    spec = template.get("spec") or {}
    yield from _shapes(spec, "spec.template.spec")
    if not _are_objects(spec.get("tolerations") or []):
        yield "spec.template.spec.tolerations is no list of objects; the operator adds its own to it"
    for label in (template.get("metadata") or {}).get("labels") or ():
        if label.startswith(f"{GROUP}/") or label in {f"app.kubernetes.io/{name}" for name in _OWN_LABELS}:
            yield f"spec.template.metadata.labels[{label}] is set by the operator; remove it"
    if "readinessGates" in spec and READINESS_GATE not in _gates(spec["readinessGates"]):
        yield (
            f"spec.template.spec.readinessGates replaces the operator's gate; add conditionType {READINESS_GATE} to it"
        )
    if "containers" in spec and spec["containers"] is None:
        yield "spec.template.spec.containers is null; a pod cannot be without its worker: remove the field"
    for container in spec.get("containers") or ():
        if container["name"] == CONTAINER:
            yield from _own_container(container, f"spec.template.spec.containers[{CONTAINER}]")
    for container in spec.get("initContainers") or ():
        if has_downloader and container["name"] == DOWNLOADER:
            yield from _own_container(container, f"spec.template.spec.initContainers[{DOWNLOADER}]")


def _own_container(container: Mapping[str, Any], path: str) -> Iterator[str]:
    for field in _OWN_FIELDS:
        if field in container:
            remedy = "set spec.image instead" if field == "image" else "the spec's own fields decide it: remove it"
            yield f"{path}.{field} is set by the operator; {remedy}"
    if "env" in container and container["env"] is None:
        yield f"{path}.env is null; the worker needs what the operator sets there: remove the field"
    for variable in container.get("env") or ():
        if variable["name"].startswith(_OWN_ENV_PREFIX):
            yield f"{path}.env[{variable['name']}] is set by the operator; remove it"
    if "ports" in container and container["ports"] is None:
        yield f"{path}.ports is null; the worker is called there: remove the field"
    for port in container.get("ports") or ():
        if port["containerPort"] in _OWN_PORTS:
            yield f"{path}.ports[{port['containerPort']}] is set by the operator; remove it"


def _shapes(value: Any, path: str) -> Iterator[str]:
    """Yield which lists cannot be merged because they are none, or hold items without their key."""
    if isinstance(value, Mapping):
        for name in (name for name in value if name in MERGE_KEYS):
            if value[name] is not None:
                yield from _list_shapes(value[name], f"{path}.{name}", MERGE_KEYS[name])
    else:
        yield f"{path} is {type(value).__name__}; an object is needed"


def _list_shapes(items: Any, path: str, key: str) -> Iterator[str]:
    if not isinstance(items, list):
        yield f"{path} is {type(items).__name__}; a list is needed"
    kind = int if key == "containerPort" else str
    for index, item in enumerate(items):
        if isinstance(item, Mapping) and isinstance(item.get(key), kind):
            yield from _shapes(item, f"{path}[{item[key]}]")
        else:
            yield f"{path}[{index}] has no {key}, by which it is merged; add it"


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) for item in value)


def _gates(gates: Any) -> set[Any]:
    items = gates if isinstance(gates, list) else []
    return {str(gate.get("conditionType")) for gate in items if isinstance(gate, Mapping)}
