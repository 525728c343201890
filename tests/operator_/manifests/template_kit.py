"""A worker's pod with a user's template merged over it."""

from __future__ import annotations

from dormouse_operator.manifests import WorkerDefaults, pod_manifest
from dormouse_operator.parse import parse_deployment

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")


def pod(template=None, **spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "generation": 1}
    body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
    body |= {} if template is None else {"template": template}
    return pod_manifest(
        parse_deployment({"metadata": metadata, "spec": body}), image="worker:1", index=0, defaults=DEFAULTS
    )


def worker(template):
    return pod({"spec": {"containers": [{"name": "worker", **template}]}})["spec"]["containers"][0]
