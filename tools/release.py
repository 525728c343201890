"""Bring a cluster, images, a release and a model volume into being; what demo and end-to-end tests stand on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bootstrap import ROOT
from tools.kubectl import Cluster, fill_claim, run

CHART = ROOT / "charts" / "dormouse"
REGISTRY = "ghcr.io/dormouse"


@dataclass(frozen=True)
class Release:
    """One installation of the chart."""

    name: str
    namespace: str
    watch_namespaces: tuple[str, ...]

    @property
    def gateway(self) -> str:
        """Return the gateway's Service as kubectl names it."""
        return f"service/{fullname(self.name)}-gateway"


def fullname(release: str) -> str:
    """Return the prefix of a release's object names, as the chart makes it."""
    return release if "dormouse" in release else f"{release}-dormouse"


def tool_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs one of our own tools."""
    return [sys.executable, "-m", module, *arguments]


def tool_env() -> dict[str, str]:
    """Return the environment in which our own tools find each other."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def image_tag() -> str:
    """Return the tag of this tree's images: a digest of everything that goes into them."""
    return run(tool_command("tools.images", "tag"), env=tool_env()).strip()


def worker_image() -> str:
    """Return the worker image's full name, in the user's own registry if one is named."""
    return f"{os.environ.get('DORMOUSE_REGISTRY', REGISTRY)}/worker:{image_tag()}"


def install(cluster: Cluster, release: Release, settings: Mapping[str, str] | None = None) -> None:
    """Install or upgrade the chart from this tree, with this tree's images, and wait until it is available."""
    values = {
        "image.registry": os.environ.get("DORMOUSE_REGISTRY", REGISTRY),
        "image.tag": image_tag(),
        "watch.namespaces": "{" + ",".join(release.watch_namespaces) + "}",
        **crd_settings(cluster, release),
        **(settings or {}),
    }
    arguments = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    for namespace in release.watch_namespaces:
        cluster.create_namespace(namespace)
    cluster.create_namespace(release.namespace)
    place = ["--namespace", release.namespace]
    cluster.helm("upgrade", "--install", release.name, str(CHART), *place, *arguments, "--wait", "--timeout", "5m")


def crd_settings(cluster: Cluster, release: Release) -> dict[str, str]:
    """Return whether the chart brings the CRD; where another release keeps it, it is brought up to date here."""
    if not _crd_owned_by_another(cluster, release):
        return {"crds.enabled": "true"}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    return {"crds.enabled": "false"}


def _crd_owned_by_another(cluster: Cluster, release: Release) -> bool:
    """Return whether the CRD stands already and another release keeps it."""
    crd = "inferencedeployments.inference.dormouse.dev"
    found = cluster.kubectl("get", "crd", crd, "--ignore-not-found", "-o", "json")
    if not found.strip():
        return False
    notes = json.loads(found)["metadata"].get("annotations", {})
    owner = (notes.get("meta.helm.sh/release-name"), notes.get("meta.helm.sh/release-namespace"))
    return owner != (release.name, release.namespace)


def fill_model_claim(
    cluster: Cluster, *, namespace: str, claim_manifest: Path, model: Path, folder: str = "tiny"
) -> None:
    """Create the claim `models` and copy a model to this directory of it, unless it is there already."""
    cluster.apply(claim_manifest.read_text("utf-8"), namespace)
    marker = f"dormouse.dev/filled-with={model.name}"
    if cluster.list("persistentvolumeclaims", namespace, marker):
        return
    fill_claim(cluster, namespace=namespace, claim="models", image=worker_image(), folders={folder: model})
    cluster.kubectl("label", "persistentvolumeclaim", "models", "-n", namespace, marker, "--overwrite")
