"""A deployment whose engine is vLLM's, on a real cluster: the agreement, tokens, and a pod that goes to Zero and back.

vLLM lies in the benchmarks' environment; the pod finds it where an image would have it. It compiles first, for
minutes on a busy machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.peer_env import peer_dir, peer_python
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]


def template():
    """Return pods that have vLLM at /opt/vllm, the interpreter of its environment, and the library that it needs.

    Raises NoPeer where the environment was not made: of a folder that is missing a kubelet would make an empty one.
    """
    peer_python()
    numa = next(Path("/usr/lib").glob("*/libnuma.so.1"))
    folders = {
        "vllm": (str(peer_dir()), "/opt/vllm"),
        "python": (sys.base_prefix, sys.base_prefix),
        "numa": (str(numa.resolve()), "/opt/lib/libnuma.so.1"),
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, (path, _) in folders.items()]
    mounts = [{"name": name, "mountPath": at, "readOnly": True} for name, (_, at) in folders.items()]
    root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}  # whose the interpreter is, and nobody else's
    libraries = {"name": "LD_LIBRARY_PATH", "value": "/opt/lib"}
    worker = {"name": "worker", "volumeMounts": mounts, "env": [libraries]}
    return {"spec": {"volumes": volumes, "securityContext": root, "containers": [worker]}}


@pytest.fixture
def folders_of_the_node(cluster, namespace):
    """Let pods of the namespace mount folders of their node, for one test."""
    label = "pod-security.kubernetes.io/enforce"
    cluster.kubectl("label", "namespace", namespace, f"{label}=privileged", "--overwrite")
    yield
    cluster.kubectl("label", "namespace", namespace, f"{label}=restricted", "--overwrite")


@pytest.mark.usefixtures("folders_of_the_node")
def test_a_deployment_of_vllm_agrees_serves_and_comes_back_from_zero(deployments, model_of, eventually):
    name = deployments.apply(
        "foreign",
        image=worker_image(),
        engine={"runtime": "vllm"},
        resources={"requests": {"cpu": "50m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
        template=template(),
    )
    deployments.wait(name, "condition=Ready", timeout_s=600)
    assert deployments.status(name)["kvCache"]["numGpuBlocks"] > 0
    assert "its worker claims no sleep of level 1 and 2" in deployments.condition(name, "Asleep")["message"]
    eventually(lambda: model_of.answers(name, [5], 1))
    before = model_of(name).greedy([3, 1, 4], 8)
    deployments.patch(name, {"lifecycle": {"desiredState": "Zero"}})
    eventually(lambda: not deployments.pods(name))
    deployments.patch(name, {"lifecycle": {"desiredState": "Auto"}})
    deployments.wait(name, "condition=Ready", timeout_s=600)
    eventually(lambda: model_of.answers(name, [5], 1))
    assert model_of(name).greedy([3, 1, 4], 8) == before
