"""What of spec.model and spec.cache the API server refuses, and which words the refusal has."""

from __future__ import annotations

NOT_AHEAD = "spec.model.prePull needs spec.model.uri oci://, or hf:// with spec.cache.claimName"
REFUSED_MODELS = [
    ({"model": {"uri": "s3://bucket/model"}}, ["spec.model.uri", "s3://bucket/model", "pvc://", "file:///"]),
    ({"model": {"uri": "file://relative"}}, ["spec.model.uri", "file:///"]),
    ({"model": {"uri": "pvc://models/../secrets"}}, ["spec.model.uri", ".."]),
    ({"model": {}}, ["spec.model.uri", "Required"]),
    ({"model": {"uri": "hf://only-a-name"}}, ["spec.model.uri", "hf://only-a-name", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b/c"}}, ["spec.model.uri", "hf://a/b/c", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b", "revision": "-x"}}, ["spec.model.revision", "-x"]),
    ({"model": {"uri": "pvc://a/b", "revision": "main"}}, ["spec.model.revision", "hf://"]),
    ({"model": {"uri": "pvc://a/b", "tokenSecretRef": {"name": "a"}}}, ["spec.model.tokenSecretRef", "hf://"]),
    ({"model": {"uri": "oci://registry/tiny"}}, ["spec.model.uri", "oci://registry/tiny", "oci://REGISTRY/NAME:TAG"]),
    ({"model": {"uri": "oci://r/tiny@sha256:0"}}, ["spec.model.uri is oci://r/tiny@sha256:0", "@sha256:DIGEST"]),
    ({"model": {"uri": "oci://r/tiny:1", "path": "/a"}}, ["spec.model.path", "/a"]),
    ({"model": {"uri": "oci://r/tiny:1", "path": "a/../b"}}, ["spec.model.path is a/../b", "must not hold .."]),
    ({"model": {"uri": "oci://r/tiny:1", "pullPolicy": "Once"}}, ["spec.model.pullPolicy", "Once", "IfNotPresent"]),
    ({"model": {"uri": "oci://r/tiny:1", "revision": "main"}}, ["spec.model.revision is for hf:// only"]),
    ({"model": {"uri": "oci://r/tiny:1", "tokenSecretRef": {"name": "a"}}}, ["tokenSecretRef is for hf:// only"]),
    ({"model": {"uri": "oci://r/tiny:1"}, "cache": {"size": "1Gi"}}, ["spec.cache keeps what hf:// downloads"]),
    ({"model": {"uri": "hf://a/b", "path": "c"}}, ["spec.model.path is for oci:// only"]),
    ({"model": {"uri": "pvc://a/b", "prePull": {}}}, [NOT_AHEAD]),
    ({"model": {"uri": "hf://a/b", "prePull": {}}, "cache": {"size": "1Gi"}}, [NOT_AHEAD]),
    ({"model": {"uri": "oci://r/a:1", "prePull": {"nodes": 1}}}, ["unknown field", "spec.model.prePull.nodes"]),
    ({"model": {"uri": "pvc://a/b", "pullPolicy": "Never"}}, ["spec.model.pullPolicy is for oci:// only"]),
    ({"model": {"uri": "hf://a/b", "tokenSecretRef": {}}}, ["spec.model.tokenSecretRef.name", "Required"]),
    ({"model": {"uri": "file:///a", "size": "16GB"}}, ["spec.model.size", "16GB"]),
    ({"cache": {"size": "1Gi"}}, ["spec.cache", "hf://ORG/NAME"]),
    ({"model": {"uri": "hf://a/b"}, "cache": {}}, ["spec.cache", "claimName", "size"]),
    ({"model": {"uri": "hf://a/b"}, "cache": {"size": "1Gi", "claimName": "c"}}, ["spec.cache", "exactly one"]),
    (
        {"model": {"uri": "hf://a/b"}, "cache": {"claimName": "c", "storageClassName": "s"}},
        ["spec.cache.storageClassName", "spec.cache.size"],
    ),
]
