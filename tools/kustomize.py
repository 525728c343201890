"""Write the kustomize base, deploy/kustomize: what the chart makes of its defaults; --check only compares.

Needs helm. What helm alone can do is left to the user: drawing the seeds (docs/install.md) and, for Grafana, the
dashboards.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import yaml

from tools.bootstrap import ROOT
from tools.charts import differences, write
from tools.kubectl import Cluster
from tools.release import CHART

Manifest = dict[str, Any]
BASE = ROOT / "deploy" / "kustomize"
NAMESPACE = "dormouse-system"
VALUES = ("dashboards.enabled=false", "roleTokens.existingSecret=dormouse-role-tokens")
KUBE_VERSION = "1.29.0"  # the oldest that the chart takes
HELMS_OWN = {"helm.sh/chart": None, "app.kubernetes.io/managed-by": "kustomize"}  # label → what it becomes
HEAD = "# Made by `make charts` from charts/dormouse; see docs/install.md.\n"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def rendered(cluster: Cluster) -> list[Manifest]:
    """Return what helm makes of the chart as release `dormouse`, without the CRDs: those have files of their own."""
    values = [part for value in VALUES for part in ("--set", value)]
    place = ["--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
    text = cluster.helm("template", "dormouse", str(CHART), *place, *values)
    made = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return [manifest for manifest in made if manifest["kind"] != "CustomResourceDefinition"]


def without_helm(manifest: Manifest) -> Manifest:
    """Return a manifest, pod template included, whose labels do not say that helm manages it."""
    changed = {**manifest, "metadata": _relabelled(manifest["metadata"])}
    if template := manifest.get("spec", {}).get("template"):
        relabelled = {**template, "metadata": _relabelled(template["metadata"])}
        changed["spec"] = {**manifest["spec"], "template": relabelled}
    return changed


def _relabelled(metadata: Manifest) -> Manifest:
    labels = {key: HELMS_OWN.get(key, value) for key, value in metadata.get("labels", {}).items()}
    return {**metadata, "labels": {key: value for key, value in labels.items() if value is not None}}


def files(manifests: list[Manifest]) -> Mapping[str, str]:
    """Return path within the base → content."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    crds = {path.name: path.read_text() for path in sorted(ROOT.glob("crds/*.yaml"))}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["namespace.yaml", *crds, "dormouse.yaml"],
    }
    return {
        "kustomization.yaml": HEAD + yaml.safe_dump(kustomization, sort_keys=False),
        "namespace.yaml": HEAD + yaml.safe_dump(namespace, sort_keys=False),
        "dormouse.yaml": HEAD + yaml.safe_dump_all(map(without_helm, manifests), sort_keys=False, width=120),
        **{name: HEAD + text for name, text in crds.items()},
    }


def main() -> None:
    """Write, or with --check say what differs and fail."""
    expected = files(rendered(Cluster.current()))
    if "--check" not in sys.argv[1:]:
        write(expected, BASE)
    elif changed := differences(expected, BASE):
        sys.exit(f"not what `make charts` makes: {', '.join(f'deploy/kustomize/{name}' for name in changed)}")


if __name__ == "__main__":
    main()
