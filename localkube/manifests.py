"""The objects every cluster of ours starts with. Pure."""

from __future__ import annotations

from typing import Any

from localkube import spec

RBAC = "rbac.authorization.k8s.io"
COREDNS_USER = "localkube:coredns"
PROVISIONER_USER = "localkube:provisioner"
POLICIES_USER = "localkube:policies"


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _role(name: str, user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a cluster role and its binding to one user."""
    api_version = f"{RBAC}/v1"
    return [
        {"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
        },
    ]


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": spec.STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": spec.PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def bootstrap() -> list[dict[str, Any]]:
    """Return rights of CoreDNS, of the provisioner and of who enforces policies, and the default storage class."""
    seeing = ["list", "watch"]
    dns = [
        _rule("", ["endpoints", "services", "pods", "namespaces"], seeing),
        _rule("discovery.k8s.io", ["endpointslices"], seeing),
    ]
    provisioner = [
        _rule("", ["persistentvolumeclaims"], seeing),
        _rule("", ["persistentvolumes"], [*seeing, "create", "delete"]),
    ]
    policies = [_rule("", ["pods", "namespaces"], seeing), _rule("networking.k8s.io", ["networkpolicies"], seeing)]
    return [
        *_role("localkube:coredns", COREDNS_USER, dns),
        *_role("localkube:provisioner", PROVISIONER_USER, provisioner),
        *_role("localkube:policies", POLICIES_USER, policies),
        _storage_class(),
    ]
