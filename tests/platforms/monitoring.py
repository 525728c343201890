"""A Prometheus that scrapes a release's gateways, and prometheus-adapter, as pods of the namespace `monitoring`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from dormouse_api.names import LABEL_COMPONENT, METRICS_PORT
from localkube.extras import PROMETHEUS_ADAPTER
from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths
from tests.platforms.guests import ensure_guest
from tools.bootstrap import ROOT, cache_root
from tools.kubectl import Cluster
from tools.release import worker_image

NAMESPACE = "monitoring"
_SCRAPED = "gateways-scraped"
_API = "v1beta1.external.metrics.k8s.io"
CONFIG = ROOT / "examples" / "autoscale" / "prometheus-adapter.yaml"
_KEPT = (  # of the adapter's own manifests; the others serve the CPU and memory of pods
    "service-account",
    "cluster-role",
    "cluster-role-binding",
    "cluster-role-binding-delegator",
    "role-binding-auth-reader",
    "service",
    "deployment",
    "config-map",
    "api-service",
)
Manifest = dict[str, Any]


@contextmanager
def monitored(cluster: Cluster, gateways: str) -> Iterator[None]:
    """Have Prometheus scrape the gateways of a namespace, and the adapter serve external metrics by our example."""
    manifests = [*_prometheus(gateways), *_adapter()]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    cluster.create_namespace(NAMESPACE, restricted=False)  # Prometheus is a file of the host's
    try:
        cluster.kubectl("apply", "-f", "-", stdin=text)
        for name in ("prometheus", "prometheus-adapter"):
            cluster.wait(f"deployment/{name}", "condition=Available", NAMESPACE)
        cluster.kubectl("wait", f"apiservice/{_API}", "--for=condition=Available", "--timeout=180s")
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=text)
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def _adapter() -> Iterator[Manifest]:
    """Yield the adapter's own manifests, changed where a user changes them."""
    kept, images = ensure_guest(PROMETHEUS_ADAPTER)
    for name in _KEPT:
        manifest = yaml.safe_load((kept / f"{name}.yaml").read_text())
        match name:
            case "deployment":
                _change(manifest["spec"], images["adapter"])
            case "config-map":
                manifest["data"] = {"config.yaml": CONFIG.read_text()}
            case "api-service":
                manifest["metadata"]["name"] = _API
                manifest["spec"]["group"] = "external.metrics.k8s.io"
        yield manifest


def _change(deployment: Manifest, image: str) -> None:
    """Have one adapter of this image ask our Prometheus, and look for new series every few seconds."""
    deployment["replicas"] = 1
    [container] = deployment["template"]["spec"]["containers"]
    changed = ("--prometheus-url", "--metrics-relist-interval")
    args = [arg for arg in container["args"] if not arg.startswith(changed)]
    args += [f"--prometheus-url=http://prometheus.{NAMESPACE}.svc:9090/", "--metrics-relist-interval=5s"]
    container |= {"image": image, "imagePullPolicy": "Never", "args": args}
    container["readinessProbe"]["initialDelaySeconds"] = 1


def _prometheus(gateways: str) -> Iterator[Manifest]:
    """Yield what runs the host's Prometheus in a pod, and a Service through which it finds the gateways."""
    paths = Paths(Path(cache_root()).resolve() / "localkube")
    programs = ensure_package(paths, PROMETHEUS, Progress())
    labels = {"app.kubernetes.io/name": "prometheus"}
    here = {"name": "prometheus", "namespace": NAMESPACE}
    scraped = {"clusterIP": "None", "selector": {LABEL_COMPONENT: "gateway"}}  # its name has the address of each
    there = {"name": _SCRAPED, "namespace": gateways}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": there, "spec": scraped}
    config = {"prometheus.yaml": json.dumps(_scrapes(gateways))}  # JSON is YAML
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": here, "data": config}
    ports = [{"port": 9090, "targetPort": 9090}]
    yield {"apiVersion": "v1", "kind": "Service", "metadata": here, "spec": {"selector": labels, "ports": ports}}
    container = {
        "name": "prometheus",
        "image": worker_image(),  # for its C library
        "command": ["/programs/prometheus", "--config.file=/config/prometheus.yaml", "--storage.tsdb.path=/data"],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 1},
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [
            {"name": "programs", "mountPath": "/programs", "readOnly": True},
            {"name": "config", "mountPath": "/config"},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    pod = {
        "containers": [container],
        "volumes": [
            {"name": "programs", "hostPath": {"path": str(programs)}},
            {"name": "config", "configMap": {"name": "prometheus"}},
            {"name": "data", "emptyDir": {}},
        ],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": here, "spec": spec}


def _scrapes(gateways: str) -> Manifest:
    """Return a configuration that scrapes each gateway every second."""
    names = [f"{_SCRAPED}.{gateways}.svc.cluster.local"]
    found = {"names": names, "type": "A", "port": METRICS_PORT, "refresh_interval": "1s"}
    job = {"job_name": "gateways", "dns_sd_configs": [found]}
    return {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
